//! A server with many connections. Only one connection at a time has a message in flight.

use anyhow::{Result, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdmsg::{Error, Interest};
use toolbox::Side;

use crate::traffic::{SILENCE, Traffic};

/// The maximum number of events per call of epoll_wait.
const EVENTS: usize = 64;

/// Echoes messages on all connections, in one thread, until all connections are closed.
pub(crate) fn serve(traffic: &Traffic) -> Result<()> {
    let endpoints = traffic.endpoints(Side::Server)?;
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    for (endpoint, place) in endpoints.iter().zip(0..) {
        let fd = endpoint.event_fd(Interest::Readable)?;
        epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, place))?;
    }
    let time_limit = EpollTimeout::try_from(SILENCE)?;
    let mut open = endpoints.len();
    let mut events = [EpollEvent::empty(); EVENTS];
    while open > 0 {
        let ready = epoll.wait(&mut events, time_limit)?;
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
