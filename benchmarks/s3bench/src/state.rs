//! What the server holds, how its links are shaped, and what it counted.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::http::Request;

pub const SAMPLE_MS: u64 = 100;

pub type Pairs = Vec<(String, String)>;

#[derive(Clone)]
pub struct Object {
    pub parts: Vec<Arc<Vec<u8>>>,
    pub size: u64,
    pub etag: String,
    pub meta: Pairs,
}

pub struct Upload {
    pub key: String,
    pub parts: BTreeMap<u32, Arc<Vec<u8>>>,
    pub meta: Pairs,
}

#[derive(Default)]
pub struct State {
    pub objects: RwLock<BTreeMap<String, Object>>,
    pub uploads: Mutex<HashMap<String, Upload>>,
    pub next_upload: AtomicU64,
    latency_us: AtomicU64,
    bytes_per_s: AtomicU64,
    push_back_until_ms: AtomicU64,
    moved: AtomicU64,
    connections: AtomicU64,
    at_once: AtomicU64,
    most_at_once: AtomicU64,
    counted: Mutex<Counted>,
}

#[derive(Default)]
pub struct Counted {
    pub operations: BTreeMap<String, u64>,
    pub log: Vec<String>,
    /// Bytes moved up to each moment of sampling, and how many requests were under way then.
    pub samples: Vec<(u64, u64, u64)>,
}

/// A request under way; it counts as such for as long as this lives.
pub struct Entered<'a> {
    state: &'a State,
    at_ms: f64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.state.at_once.fetch_sub(1, Relaxed);
    }
}

/// Milliseconds since 1970, so that another process's clock can be compared.
pub fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3)
}

impl State {
    pub fn shape(&self, latency_ms: f64, mb_per_s: f64) {
        self.latency_us.store((latency_ms * 1e3) as u64, Relaxed);
        self.bytes_per_s.store((mb_per_s * 1e6) as u64, Relaxed);
    }

    pub fn latency(&self) -> Duration {
        Duration::from_micros(self.latency_us.load(Relaxed))
    }

    /// For one body; one that will be refused is received as fast as it comes.
    pub fn pace(&self) -> Pace<'_> {
        let rate = if self.pushes_back() { 0.0 } else { self.bytes_per_s.load(Relaxed) as f64 };
        Pace { state: self, started: Instant::now(), bytes: 0, rate }
    }

    pub fn push_back(&self, ms: u64) {
        self.push_back_until_ms.store(now_ms() as u64 + ms, Relaxed);
    }

    pub fn pushes_back(&self) -> bool {
        (now_ms() as u64) < self.push_back_until_ms.load(Relaxed)
    }

    pub fn connected(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    pub fn enter(&self) -> Entered<'_> {
        let at_once = self.at_once.fetch_add(1, Relaxed) + 1;
        self.most_at_once.fetch_max(at_once, Relaxed);
        Entered { state: self, at_ms: now_ms() }
    }

    pub fn leave(&self, entered: Entered<'_>, operation: &str, code: u32, request: &Request, size: usize) {
        let mut counted = self.counted.lock().unwrap();
        *counted.operations.entry(operation.to_string()).or_default() += 1;
        let path = request.path.replace('\\', "\\\\").replace('"', "\\\"");
        let line = format!("[{:.3},{:.3},\"{}\",\"{}\",{},{}]", entered.at_ms, now_ms(), operation, path, code, size);
        counted.log.push(line);
    }

    pub fn sample(&self) {
        let each = (now_ms() as u64, self.moved.load(Relaxed), self.at_once.load(Relaxed));
        let samples = &mut self.counted.lock().unwrap().samples;
        if each.2 > 0 || samples.last().is_some_and(|last| last.1 != each.1) {
            samples.push(each); // an idle server grows nothing
        }
    }

    pub fn forget_objects(&self) {
        self.objects.write().unwrap().clear();
        self.uploads.lock().unwrap().clear();
    }

    pub fn reset(&self) {
        self.forget_objects();
        self.shape(0.0, 0.0);
        self.push_back_until_ms.store(0, Relaxed);
        self.reset_figures();
    }

    pub fn reset_figures(&self) {
        *self.counted.lock().unwrap() = Counted::default();
        self.moved.store(0, Relaxed);
        self.connections.store(0, Relaxed);
        self.most_at_once.store(self.at_once.load(Relaxed), Relaxed);
    }

    pub fn figures(&self) -> String {
        let counted = self.counted.lock().unwrap();
        let operations: Vec<String> = counted.operations.iter().map(|(name, n)| format!("\"{name}\":{n}")).collect();
        let samples: Vec<String> = counted.samples.iter().map(|each| format!("[{},{},{}]", each.0, each.1, each.2)).collect();
        format!(
            "{{\"operations\":{{{}}},\"bytes\":{},\"connections\":{},\"most_at_once\":{},\"samples\":[{}]}}",
            operations.join(","),
            self.moved.load(Relaxed),
            self.connections.load(Relaxed),
            self.most_at_once.load(Relaxed),
            samples.join(",")
        )
    }

    pub fn log(&self) -> String {
        format!("[{}]", self.counted.lock().unwrap().log.join(","))
    }
}

/// Holds one body to the link's rate.
pub struct Pace<'a> {
    state: &'a State,
    started: Instant,
    bytes: u64,
    rate: f64,
}

impl Pace<'_> {
    pub fn add(&mut self, count: usize) {
        self.state.moved.fetch_add(count as u64, Relaxed);
        if self.rate <= 0.0 {
            return;
        }
        self.bytes += count as u64;
        let due = self.bytes as f64 / self.rate;
        let elapsed = self.started.elapsed().as_secs_f64();
        if due > elapsed + 0.002 {
            std::thread::sleep(Duration::from_secs_f64(due - elapsed));
        }
    }
}
