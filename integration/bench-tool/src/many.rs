//! One process with many connections, of which one at a time has something to say.

use anyhow::{Result, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdmsg::{Error, Interest};
use toolbox::Side;

use crate::traffic::{SILENCE, Traffic};

/// How many descriptors are taken from epoll at a time.
const EVENTS: usize = 64;

/// Sends back what comes on any connection, until all are closed. One thread waits for all.
pub(crate) fn serve(traffic: &Traffic) -> Result<()> {
    let endpoints = traffic.endpoints(Side::Server)?;
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    for (endpoint, place) in endpoints.iter().zip(0..) {
        let fd = endpoint.event_fd(Interest::Readable)?;
        epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, place))?;
    }
    let patience = EpollTimeout::try_from(SILENCE)?;
    let mut open = endpoints.len();
    let mut events = [EpollEvent::empty(); EVENTS];
    while open > 0 {
        let ready = epoll.wait(&mut events, patience)?;
        ensure!(ready > 0, "the client is silent");
        for event in &events[..ready] {
            let endpoint = &endpoints[usize::try_from(event.data())?];
            loop {
                match endpoint.try_recv() {
                    Ok(Some(message)) => endpoint.send(&message)?,
                    Ok(None) => break,
                    Err(Error::Disconnected(_)) => {
                        epoll.delete(endpoint.event_fd(Interest::Readable)?)?;
                        open -= 1;
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(())
}
