//! A program that only copies bytes between two TCP connections, in both directions.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
};

use anyhow::{Context, Result};
use toolbox::{Line, Process, TIME_LIMIT};

/// The length of a buffer in bytes.
const PIECE: usize = 60 << 10;

/// The text that the copier prints before its address when it listens.
const LISTENS: &str = "listening on ";

/// Starts this program as a copier that forwards to `target`. Returns the process, and the address
/// on which the copier listens.
pub(crate) fn start(target: SocketAddr) -> Result<(Process, SocketAddr)> {
    let program = std::env::current_exe()?;
    let argv = [
        &*program.to_string_lossy(),
        "--copy-to",
        &target.to_string(),
    ];
    let mut process = Process::start(&argv)?;
    let line = match process.line(TIME_LIMIT) {
        Some(Line::Out(line)) => line,
        Some(Line::Err(_)) | None => anyhow::bail!("{}", process.finish(TIME_LIMIT)?),
    };
    let address = line
        .strip_prefix(LISTENS)
        .context("the copier does not listen")?;
    Ok((process, address.parse()?))
}

/// Accepts connections until the process is killed. Connects to `target` for each accepted
/// connection, and copies the bytes in both directions.
pub(crate) fn run(target: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{LISTENS}{}", listener.local_addr()?);
    loop {
        let (client, _) = listener.accept()?;
        thread::spawn(move || {
            // Ignore the error: if the client or the target fails, this closure closes both
            // connections.
            let _ = join(&client, target);
        });
    }
}

fn join(client: &TcpStream, target: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(target)?;
    for end in [client, &server] {
        end.set_nodelay(true)?;
    }
    thread::scope(|scope| {
        scope.spawn(|| copy(&server, client));
        copy(client, &server)
    })
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let len = from.read(&mut piece)?;
        if len == 0 {
            return to.shutdown(Shutdown::Write);
        }
        to.write_all(&piece[..len])?;
    }
}
