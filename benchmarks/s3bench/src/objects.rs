//! The S3 operations. Each answers and returns its name and status.

use std::io::{Result, Write};
use std::net::TcpStream;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use crate::http::{refuse, send, send_head, send_xml, Request, STEP};
use crate::state::{Object, State, Upload};

const DATE: &str = "Thu, 01 Jan 2026 00:00:00 GMT";
const NAMESPACE: &str = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";

type Answered = Result<(&'static str, u32)>;

pub fn answer(out: &mut TcpStream, state: &State, request: &Request, body: Vec<u8>) -> Answered {
    let full = request.path.trim_start_matches('/');
    let (bucket, key) = full.split_once('/').unwrap_or((full, ""));
    let asks = |name: &str| request.query.contains_key(name);
    match (request.method.as_str(), key.is_empty()) {
        ("GET", true) if asks("location") => done(send_xml(out, &format!("<LocationConstraint {NAMESPACE}/>")), "GetBucketLocation"),
        ("GET", true) if asks("uploads") => {
            let text = format!("<ListMultipartUploadsResult {NAMESPACE}><Bucket>{bucket}</Bucket><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>");
            done(send_xml(out, &text), "ListMultipartUploads")
        }
        ("GET", true) => done(send_xml(out, &listing(state, request, bucket)), "ListObjects"),
        ("HEAD", true) => done(send(out, 200, &[], b""), "HeadBucket"),
        ("PUT", true) => done(send(out, 200, &[], b""), "CreateBucket"),
        ("POST", true) => done(send_xml(out, &format!("<DeleteResult {NAMESPACE}/>")), "DeleteObjects"),
        ("POST", false) if asks("uploads") => create_upload(out, state, request, full, bucket, key),
        ("POST", false) if asks("uploadId") => complete_upload(out, state, request, full, bucket, key),
        ("PUT", false) if asks("uploadId") => upload_part(out, state, request, body),
        ("PUT", false) => put(out, state, request, full, body),
        ("GET", false) if asks("uploadId") => list_parts(out, state, request, bucket, key),
        ("GET" | "HEAD", false) => get(out, state, request, full),
        ("DELETE", false) if asks("uploadId") => {
            state.uploads.lock().unwrap().remove(&request.query["uploadId"]);
            send(out, 204, &[], b"").map(|()| ("AbortMultipartUpload", 204))
        }
        ("DELETE", false) => {
            state.objects.write().unwrap().remove(full);
            send(out, 204, &[], b"").map(|()| ("DeleteObject", 204))
        }
        _ => refuse(out, 501, "NotImplemented", false).map(|()| ("Unknown", 501)),
    }
}

fn done(sent: Result<()>, name: &'static str) -> Answered {
    sent.map(|()| (name, 200))
}

fn refused(out: &mut TcpStream, name: &'static str, code: u32, word: &str) -> Answered {
    refuse(out, code, word, name == "HeadObject").map(|()| (name, code))
}

/// Whether `If-None-Match: *` and `If-Match` allow a write over what is there.
fn may_write(request: &Request, there: Option<&Object>) -> bool {
    let is_new = request.header("if-none-match").is_none() || there.is_none();
    let is_same = |etag: &str| there.is_some_and(|object| etag.trim_matches('"') == object.etag);
    is_new && request.header("if-match").map(is_same).unwrap_or(true)
}

fn put(out: &mut TcpStream, state: &State, request: &Request, full: &str, body: Vec<u8>) -> Answered {
    let etag = etag_of(&body);
    let object = Object { size: body.len() as u64, parts: vec![Arc::new(body)], etag: etag.clone(), meta: request.meta() };
    let mut objects = state.objects.write().unwrap();
    if !may_write(request, objects.get(full)) {
        drop(objects);
        return refused(out, "PutObject", 412, "PreconditionFailed");
    }
    objects.insert(full.to_string(), object);
    drop(objects);
    done(send(out, 200, &[("ETag", quoted(&etag))], b""), "PutObject")
}

fn create_upload(out: &mut TcpStream, state: &State, request: &Request, full: &str, bucket: &str, key: &str) -> Answered {
    let id = format!("up{}", state.next_upload.fetch_add(1, Relaxed));
    let upload = Upload { key: full.to_string(), parts: Default::default(), meta: request.meta() };
    state.uploads.lock().unwrap().insert(id.clone(), upload);
    let text = format!(
        "<InitiateMultipartUploadResult {NAMESPACE}><Bucket>{bucket}</Bucket><Key>{}</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>",
        escape(key)
    );
    done(send_xml(out, &text), "CreateMultipartUpload")
}

fn upload_part(out: &mut TcpStream, state: &State, request: &Request, body: Vec<u8>) -> Answered {
    let etag = etag_of(&body);
    let number = request.query.get("partNumber").and_then(|text| text.parse().ok()).unwrap_or(0);
    let known = match state.uploads.lock().unwrap().get_mut(&request.query["uploadId"]) {
        Some(upload) => {
            upload.parts.insert(number, Arc::new(body));
            true
        }
        None => false,
    };
    if !known {
        return refused(out, "UploadPart", 404, "NoSuchUpload");
    }
    // R2 repeats the checksum that it has compared; here it is not compared.
    let mut headers = vec![("ETag", quoted(&etag))];
    headers.extend(request.header("x-amz-checksum-crc64nvme").map(|sum| ("x-amz-checksum-crc64nvme", sum.to_string())));
    done(send(out, 200, &headers, b""), "UploadPart")
}

fn complete_upload(out: &mut TcpStream, state: &State, request: &Request, full: &str, bucket: &str, key: &str) -> Answered {
    let mut objects = state.objects.write().unwrap();
    if !may_write(request, objects.get(full)) {
        drop(objects);
        return refused(out, "CompleteMultipartUpload", 412, "PreconditionFailed");
    }
    let Some(upload) = state.uploads.lock().unwrap().remove(&request.query["uploadId"]).filter(|upload| upload.key == full) else {
        drop(objects);
        return refused(out, "CompleteMultipartUpload", 404, "NoSuchUpload");
    };
    let parts: Vec<_> = upload.parts.into_values().collect();
    let size = parts.iter().map(|part| part.len() as u64).sum();
    let etag = format!("{size:032x}-{}", parts.len());
    objects.insert(full.to_string(), Object { parts, size, etag: etag.clone(), meta: upload.meta });
    drop(objects);
    let text = format!(
        "<CompleteMultipartUploadResult {NAMESPACE}><Location>x</Location><Bucket>{bucket}</Bucket><Key>{}</Key><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>",
        escape(key)
    );
    done(send_xml(out, &text), "CompleteMultipartUpload")
}

fn list_parts(out: &mut TcpStream, state: &State, request: &Request, bucket: &str, key: &str) -> Answered {
    let id = &request.query["uploadId"];
    let rows = state.uploads.lock().unwrap().get(id).map(|upload| {
        let each = upload.parts.iter().map(|(number, part)| {
            let (etag, size) = (etag_of(part), part.len());
            format!("<Part><PartNumber>{number}</PartNumber><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size></Part>")
        });
        each.collect::<String>()
    });
    let Some(rows) = rows else {
        return refused(out, "ListParts", 404, "NoSuchUpload");
    };
    let text = format!(
        "<ListPartsResult {NAMESPACE}><Bucket>{bucket}</Bucket><Key>{}</Key><UploadId>{id}</UploadId><IsTruncated>false</IsTruncated>{rows}</ListPartsResult>",
        escape(key)
    );
    done(send_xml(out, &text), "ListParts")
}

fn get(out: &mut TcpStream, state: &State, request: &Request, full: &str) -> Answered {
    let name = if request.method == "HEAD" { "HeadObject" } else { "GetObject" };
    let Some(object) = state.objects.read().unwrap().get(full).cloned() else {
        return refused(out, name, 404, "NoSuchKey");
    };
    if request.header("if-match").is_some_and(|etag| etag.trim_matches('"') != object.etag) {
        return refused(out, name, 412, "PreconditionFailed");
    }
    let range = request.header("range").and_then(|text| range_of(text, object.size));
    let (start, end) = range.unwrap_or((0, object.size));
    if range.is_some() && start >= object.size {
        return refused(out, name, 416, "InvalidRange");
    }
    let code = if range.is_some() { 206 } else { 200 };
    let mut headers = vec![
        ("ETag", quoted(&object.etag)),
        ("Last-Modified", DATE.to_string()),
        ("Accept-Ranges", "bytes".to_string()),
        ("Content-Type", "application/octet-stream".to_string()),
    ];
    if range.is_some() {
        headers.push(("Content-Range", format!("bytes {start}-{}/{}", end - 1, object.size)));
    }
    headers.extend(object.meta.iter().map(|(name, value)| (name.as_str(), value.clone())));
    send_head(out, code, &headers, end - start)?;
    if name == "GetObject" {
        send_bytes(out, state, &object, start, end)?;
    }
    Ok((name, code))
}

fn send_bytes(out: &mut TcpStream, state: &State, object: &Object, start: u64, end: u64) -> Result<()> {
    let mut pace = state.pace();
    let mut before = 0;
    for part in &object.parts {
        let after = before + part.len() as u64;
        if after > start && before < end {
            let wanted = &part[start.saturating_sub(before) as usize..(end.min(after) - before) as usize];
            for piece in wanted.chunks(STEP) {
                out.write_all(piece)?;
                pace.add(piece.len());
            }
        }
        before = after;
    }
    Ok(())
}

/// First byte and the one after the last; `None` for what is no single range of bytes.
fn range_of(text: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        return Some((size.saturating_sub(last.parse().ok()?), size));
    }
    let end = if last.is_empty() { size } else { size.min(last.parse::<u64>().ok()? + 1) };
    Some((first.parse().ok()?, end))
}

fn listing(state: &State, request: &Request, bucket: &str) -> String {
    let asked = |name: &str| request.query.get(name).map_or("", String::as_str);
    let (prefix, delimiter) = (asked("prefix"), asked("delimiter"));
    let after = if request.query.contains_key("continuation-token") { asked("continuation-token") } else { asked("start-after") };
    let most = asked("max-keys").parse().unwrap_or(1000_usize);
    let (objects, whole) = (state.objects.read().unwrap(), format!("{bucket}/{prefix}"));
    let (mut rows, mut commons, mut count, mut next) = (String::new(), String::new(), 0, None);
    let mut last_seen = String::new();
    let from = format!("{bucket}/{after}").max(whole.clone());
    let first = objects.get_key_value(&from).filter(|_| after.is_empty());
    for (full, object) in first.into_iter().chain(objects.range((Excluded(from), Unbounded))) {
        if !full.starts_with(&whole) {
            break;
        }
        let key = &full[bucket.len() + 1..];
        let common = (!delimiter.is_empty()).then(|| key[prefix.len()..].find(delimiter)).flatten();
        let common = common.map(|at| &key[..prefix.len() + at + delimiter.len()]);
        if common.is_some_and(|common| commons.ends_with(&common_row(common)) || (!after.is_empty() && after.starts_with(common))) {
            last_seen = key.to_string();
            continue;
        }
        if count == most {
            next = Some(last_seen);
            break;
        }
        count += 1;
        last_seen = key.to_string();
        match common {
            Some(common) => commons.push_str(&common_row(common)),
            None => rows.push_str(&format!(
                "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;{}&quot;</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
                escape(key), object.etag, object.size
            )),
        }
    }
    let token = next.as_ref().map_or(String::new(), |key| format!("<NextContinuationToken>{}</NextContinuationToken>", escape(key)));
    format!(
        "<ListBucketResult {NAMESPACE}><Name>{bucket}</Name><Prefix>{}</Prefix><KeyCount>{count}</KeyCount><MaxKeys>{most}</MaxKeys><IsTruncated>{}</IsTruncated>{token}{rows}{commons}</ListBucketResult>",
        escape(prefix),
        next.is_some()
    )
}

fn common_row(common: &str) -> String {
    format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escape(common))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn quoted(etag: &str) -> String {
    format!("\"{etag}\"")
}

/// Looks like an MD5 and is none: an FNV over every so many bytes, as a digest would make the server the slow one.
fn etag_of(data: &[u8]) -> String {
    let step = (data.len() / 4096).max(1);
    let sum = data.iter().step_by(step).fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    format!("{:032x}", sum ^ data.len() as u64)
}
