//! Servers that serve many connections in one thread.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use futures_util::{SinkExt, StreamExt};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdmsg::{Completion, Endpoint, Error, Group, Interest};
use tokio::task::JoinSet;
use toolbox::Side;

use crate::{
    manner::{Library, Way},
    messages::{Carrier, runtime},
    traffic::{SILENCE, Traffic},
};

/// The maximum number of events per call of epoll_wait.
const EVENTS: usize = 64;

/// Returns true if a server of this module must serve this traffic.
pub(crate) fn serves(traffic: &Traffic) -> bool {
    let manner = traffic.manner;
    let has_tasks = manner.has(Way::Tasks) || manner.library == Library::Codec;
    let is_many = has_tasks && (manner.connections > 1 || traffic.measure.is_of_idle());
    manner.has(Way::EventFd) || manner.has(Way::Group) || is_many
}

/// Echoes messages on all connections, in one thread, until all connections are closed.
pub(crate) fn serve(traffic: &Traffic) -> Result<()> {
    if traffic.manner.has(Way::EventFd) {
        return with_epoll(&traffic.endpoints(Side::Server)?);
    }
    if traffic.manner.has(Way::Group) {
        return with_group(traffic.endpoints(Side::Server)?);
    }
    runtime()?.block_on(async {
        let mut echoes = echoes(Carrier::all(traffic, Side::Server).await?)?;
        while let Some(echo) = echoes.join_next().await {
            echo??;
        }
        Ok(())
    })
}

/// For each connection, spawns a task that echoes the messages until the client closes.
pub(crate) fn echoes(carriers: Vec<Carrier>) -> Result<JoinSet<Result<()>>> {
    let mut echoes = JoinSet::new();
    for carrier in carriers {
        match carrier {
            Carrier::Tasks(endpoint) => echoes.spawn(async move {
                while let Ok(message) = endpoint.recv().await {
                    endpoint.send(&message).await?;
                }
                Ok(())
            }),
            Carrier::Codec(mut codec) => echoes.spawn(async move {
                while let Some(message) = codec.frames.next().await {
                    codec.frames.send(message?.freeze()).await?;
                }
                Ok(())
            }),
            _ => bail!("only tasks serve many connections"),
        };
    }
    Ok(echoes)
}

fn with_epoll(endpoints: &[Endpoint]) -> Result<()> {
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
        ensure!(ready > 0, "the client has sent nothing within {SILENCE:?}");
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

fn with_group(endpoints: Vec<Endpoint>) -> Result<()> {
    let group = Group::new();
    let mut open = HashMap::new();
    for endpoint in endpoints {
        open.insert(group.add(&endpoint)?, endpoint);
    }
    while !open.is_empty() {
        let (key, completion) = group.next_completion_timeout(SILENCE)?;
        match completion {
            Completion::Received(message) => {
                let endpoint = open.get(&key).context("unknown key of a group")?;
                endpoint.send(&message)?;
            }
            Completion::Disconnected(_) => drop(open.remove(&key)),
            _ => {}
        }
    }
    Ok(())
}
