//! An in-memory S3 look-alike for benchmarks: a thread per connection, no authentication, standard library only.
//!
//! `s3bench --port N`. `/_bench/…` on the same port is its remote control, see `control.rs`.

mod control;
mod http;
mod objects;
mod state;

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use state::State;

fn serve(stream: TcpStream, state: &State) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream.try_clone()?;
    let mut reader = BufReader::with_capacity(65536, stream);
    let mut is_known = false; // the remote control's own connections are not counted
    while let Some(mut request) = Request::read_head(&mut reader)? {
        if request.path.starts_with("/_bench/") {
            let (code, text) = control::answer(state, &request);
            http::send(&mut out, code, &[], text.as_bytes())?;
            continue;
        }
        if !is_known {
            state.connected();
            is_known = true;
        }
        let entered = state.enter();
        if request.header("expect").is_some() {
            out.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let mut is_refused = state.pushes_back();
        let body = request.read_body(&mut reader, state)?;
        let latency = state.latency();
        if !latency.is_zero() {
            std::thread::sleep(latency);
        }
        let size = body.len();
        is_refused |= state.pushes_back();
        let (operation, code) = if is_refused {
            http::refuse(&mut out, 503, "SlowDown", request.method == "HEAD")?;
            ("Refused", 503)
        } else {
            objects::answer(&mut out, state, &request, body)?
        };
        state.leave(entered, operation, code, &request, size);
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let port: u16 = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "--port", port] => port.parse().expect("a port"),
        _ => {
            eprintln!("usage: s3bench --port N");
            std::process::exit(2);
        }
    };
    let state = Arc::new(State::default());
    let sampler = state.clone();
    std::thread::spawn(move || loop {
        std::thread::sleep(Duration::from_millis(state::SAMPLE_MS));
        sampler.sample();
    });
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    println!("READY");
    for stream in listener.incoming().flatten() {
        let state = state.clone();
        std::thread::spawn(move || {
            let _ = serve(stream, &state); // a client that went away is no news
        });
    }
}
