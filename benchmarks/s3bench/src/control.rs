//! The remote control: `/_bench/reset`, `forget_objects`, `reset_figures`, `figures`, `log`, `shape?latency_ms=40&mb_per_s=10`, `push_back?ms=500`.

use crate::http::Request;
use crate::state::State;

pub fn answer(state: &State, request: &Request) -> (u32, String) {
    let number = |name: &str| request.query.get(name).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let text = match request.path.trim_start_matches("/_bench/") {
        "reset" => {
            state.reset();
            String::new()
        }
        "forget_objects" => {
            state.forget_objects();
            String::new()
        }
        "reset_figures" => {
            state.reset_figures();
            String::new()
        }
        "shape" => {
            state.shape(number("latency_ms"), number("mb_per_s"));
            String::new()
        }
        "push_back" => {
            state.push_back(number("ms") as u64);
            String::new()
        }
        "figures" => state.figures(),
        "log" => state.log(),
        _ => return (404, String::new()),
    };
    (200, text)
}
