//! As much of HTTP/1.1 as S3 clients speak.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;

use crate::state::{Pairs, State};

/// Bytes between two looks at the clock of a link with a rate.
pub const STEP: usize = 256 * 1024;

pub struct Request {
    pub method: String,
    pub path: String,
    pub query: HashMap<String, String>,
    headers: HashMap<String, String>,
}

impl Request {
    /// The next request's head; `None` when the client closed.
    pub fn read_head(reader: &mut BufReader<TcpStream>) -> Result<Option<Request>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Ok(None);
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Request { method: method.into(), path: unescape(path), query: pairs(query), headers: HashMap::new() };
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            if line.trim_end().is_empty() {
                return Ok(Some(request));
            }
            if let Some((name, value)) = line.split_once(':') {
                request.headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
            }
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub fn meta(&self) -> Pairs {
        let kept = self.headers.iter().filter(|(name, _)| name.starts_with("x-amz-meta-"));
        kept.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    pub fn read_body(&mut self, reader: &mut BufReader<TcpStream>, state: &State) -> Result<Vec<u8>> {
        let raw = match self.header("transfer-encoding") {
            Some(coding) if coding.eq_ignore_ascii_case("chunked") => read_chunked(reader, state)?,
            _ => {
                let length = self.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
                read_exactly(reader, state, length)?
            }
        };
        let streamed = self.header("x-amz-content-sha256").is_some_and(|text| text.starts_with("STREAMING"));
        let coded = self.header("content-encoding").is_some_and(|text| text.contains("aws-chunked"));
        Ok(if streamed || coded { without_aws_chunks(&raw) } else { raw })
    }
}

fn read_exactly(reader: &mut BufReader<TcpStream>, state: &State, length: usize) -> Result<Vec<u8>> {
    let mut pace = state.pace();
    let mut body: Vec<u8> = Vec::with_capacity(length);
    #[allow(clippy::uninit_vec)] // zeroing would cost as much as receiving; every byte is written below or dropped
    unsafe {
        body.set_len(length);
    }
    let mut done = 0;
    while done < length {
        let end = (done + STEP).min(length);
        let count = reader.read(&mut body[done..end])?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        done += count;
        pace.add(count);
    }
    Ok(body)
}

fn read_chunked(reader: &mut BufReader<TcpStream>, state: &State) -> Result<Vec<u8>> {
    let mut pace = state.pace();
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = chunk_size(&line)?;
        if size == 0 {
            while !line.trim().is_empty() {
                line.clear();
                reader.read_line(&mut line)?;
            }
            return Ok(body);
        }
        let start = body.len();
        body.resize(start + size, 0);
        reader.read_exact(&mut body[start..])?;
        pace.add(size);
        line.clear();
        reader.read_line(&mut line)?;
    }
}

fn without_aws_chunks(raw: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(raw.len());
    let mut at = 0;
    while let Some(end) = raw[at..].windows(2).position(|two| two == b"\r\n").map(|found| at + found) {
        match chunk_size(&String::from_utf8_lossy(&raw[at..end])) {
            Ok(size) if size > 0 => {
                body.extend_from_slice(&raw[end + 2..end + 2 + size]);
                at = end + 4 + size;
            }
            _ => break, // the last chunk; trailers follow
        }
    }
    body
}

fn chunk_size(line: &str) -> Result<usize> {
    let digits = line.trim().split(';').next().unwrap_or("");
    usize::from_str_radix(digits, 16).map_err(|_| Error::from(ErrorKind::InvalidData))
}

fn pairs(query: &str) -> HashMap<String, String> {
    let each = query.split('&').filter(|text| !text.is_empty());
    each.map(|text| text.split_once('=').unwrap_or((text, ""))).map(|(name, value)| (unescape(name), unescape(value))).collect()
}

fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A head that promises `length` bytes of body, which the caller sends.
pub fn send_head(out: &mut TcpStream, code: u32, headers: &[(&str, String)], length: u64) -> Result<()> {
    let mut head = format!("HTTP/1.1 {code} X\r\nServer: s3bench\r\nContent-Length: {length}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    out.write_all(head.as_bytes())
}

pub fn send(out: &mut TcpStream, code: u32, headers: &[(&str, String)], body: &[u8]) -> Result<()> {
    send_head(out, code, headers, body.len() as u64)?;
    out.write_all(body)
}

pub fn send_xml(out: &mut TcpStream, body: &str) -> Result<()> {
    let declared = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>{body}");
    send(out, 200, &[("Content-Type", "application/xml".into())], declared.as_bytes())
}

pub fn refuse(out: &mut TcpStream, code: u32, word: &str, head_only: bool) -> Result<()> {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{word}</Code><Message>{word}</Message></Error>");
    let shown = if head_only { "" } else { &body };
    send(out, code, &[("Content-Type", "application/xml".into())], shown.as_bytes())
}
