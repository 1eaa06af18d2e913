//! Makes calls into the library, one at a time. Callgrind counts the instructions of each call.
//! Each message or completion has arrived before the call that receives it, so each poll succeeds
//! at the first attempt.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

use anyhow::{Context, Result, ensure};
use rdmsg::{Completion, Endpoint, Message, Outgoing};
use toolbox::Side;

use crate::{
    manner::Way,
    traffic::{SILENCE, Traffic},
};

/// The length of each message in bytes.
pub(crate) const SIZE: usize = 64;

/// The number of unmeasured round trips at the start.
const WARM_UP: u64 = 50;

/// The names of the functions below that callgrind measures.
pub(crate) const NAMES: [&str; 3] = ["send", "receive", "release"];

#[inline(never)]
fn send(endpoint: &Endpoint, message: &[u8]) -> Result<(), rdmsg::Error> {
    endpoint.send(message)
}

/// Receives a message. This call also polls for the completion of the previous send, as it does in
/// every program.
#[inline(never)]
fn receive(endpoint: &Endpoint) -> Result<Message, rdmsg::Error> {
    endpoint.recv()
}

#[inline(never)]
fn release(message: Message) {
    drop(message);
}

/// Returns the name of a measured function in the form that callgrind prints.
pub(crate) fn function(name: &str) -> String {
    format!("{}::{name}", module_path!())
}

/// Echoes each message. The completion of the send shows that the echo has arrived at the client's
/// device. After each completion, notifies the client by sending a byte over a separate TCP
/// connection.
pub(crate) fn serve(traffic: &Traffic) -> Result<()> {
    let told = TcpListener::bind(traffic.server)?;
    let endpoints = traffic.endpoints(Side::Server)?;
    let endpoint = endpoints.first().context("no connection")?;
    let (mut told, _) = told.accept()?;
    for id in 0..WARM_UP + traffic.count {
        let message = endpoint.recv_timeout(SILENCE)?;
        endpoint.send(Outgoing::from(&message).with_id(id))?;
        drop(message);
        let sent = endpoint.next_completion_timeout(SILENCE)?;
        let is_sent = matches!(sent, Completion::Sent(sent) if sent == id);
        ensure!(is_sent, "message {id} was not sent: {sent:?}");
        told.write_all(&[0])?;
    }
    drop(endpoint.recv_timeout(SILENCE));
    Ok(())
}

/// Makes the calls, which callgrind measures.
pub(crate) fn measure(traffic: &Traffic) -> Result<()> {
    let busy = Traffic {
        manner: traffic.manner.with(Way::Busy),
        ..traffic.clone()
    };
    let endpoints = busy.endpoints(Side::Client)?;
    let endpoint = endpoints.first().context("no connection")?;
    let mut told = TcpStream::connect(traffic.server).context("cannot connect to the server")?;
    told.set_read_timeout(Some(SILENCE))?;
    let message = [0x5a; SIZE];
    for turn in 0..WARM_UP + traffic.count {
        let counted = turn >= WARM_UP;
        if counted {
            send(endpoint, &message)?;
        } else {
            endpoint.send(&message)?;
        }
        told.read_exact(&mut [0])?;
        if counted {
            release(receive(endpoint)?);
        } else {
            drop(endpoint.recv_timeout(SILENCE)?);
        }
    }
    Ok(endpoint.close()?)
}
