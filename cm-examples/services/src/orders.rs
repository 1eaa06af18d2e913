//! Orders that are executed once each, although the server is replaced again and again.
//!
//! A message of a client is the number of an order, and the server answers with the number. A
//! server that stops sends an empty message, which asks its client to connect again. The client
//! then finishes its side of the connection. So the server knows the last order of the connection,
//! answers all of them, and closes. No order is in doubt, and the client sends none again.

use std::{collections::HashSet, sync::atomic::AtomicU64, sync::atomic::Ordering};

use rdmsg::{Addresses, CloseReason, Connector, Error, tokio::Endpoint};
use tokio_util::sync::CancellationToken;

use crate::Result;

/// The maximum number of orders of a connection that have no answer yet.
const OPEN: usize = 16;

/// Executes the orders of a client until the client finishes its side, then closes the connection.
/// If `stop` is cancelled, asks the client for that.
///
/// # Errors
///
/// Fails if the connection is lost. Then the client may have orders in doubt.
pub async fn serve(client: Endpoint, stop: CancellationToken, execute: impl Fn(u64)) -> Result<()> {
    let mut is_asked = false;
    loop {
        let order = tokio::select! {
            order = client.recv() => order,
            () = stop.cancelled(), if !is_asked => {
                client.send(b"").await?;
                is_asked = true;
                continue;
            }
        };
        match order {
            Ok(order) => {
                execute(number(&order)?);
                client.send(&*order).await?;
            }
            Err(Error::PeerFinished) => return Ok(client.close().await?),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Places orders with one server after the other, and counts the answers. `connector` retries while
/// no server listens.
///
/// # Errors
///
/// Fails if no server listens in time, if an order is answered twice, or if a connection is lost
/// while orders are in doubt.
pub async fn place(
    connector: &Connector,
    address: &Addresses,
    mut orders: impl Iterator<Item = u64>,
    answered: &AtomicU64,
) -> Result<()> {
    let mut is_complete = false;
    while !is_complete {
        let server = Endpoint::connect_with(connector, address.clone()).await?;
        is_complete = place_with(&server, &mut orders, answered).await?;
    }
    Ok(())
}

/// Places orders until the last one, or until the server asks to connect again. Returns whether the
/// last one was placed.
async fn place_with(
    server: &Endpoint,
    orders: &mut impl Iterator<Item = u64>,
    answered: &AtomicU64,
) -> Result<bool> {
    let (mut open, mut is_finished, mut is_complete) = (HashSet::new(), false, false);
    loop {
        while !is_finished && open.len() < OPEN {
            if let Some(order) = orders.next() {
                open.insert(order);
                server.send(&order.to_le_bytes()).await?;
            } else {
                server.finish()?;
                (is_finished, is_complete) = (true, true);
            }
        }
        match server.recv().await {
            Ok(asks) if asks.is_empty() => {
                if !is_finished {
                    server.finish()?;
                    is_finished = true;
                }
            }
            Ok(answer) => {
                let order = number(&answer)?;
                if !open.remove(&order) {
                    return Err(format!("order {order} has a second answer").into());
                }
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::Disconnected(CloseReason::PeerClosed)) if is_finished && open.is_empty() => {
                return Ok(is_complete);
            }
            Err(error) => return Err(format!("{} orders in doubt: {error}", open.len()).into()),
        }
    }
}

fn number(message: &[u8]) -> Result<u64> {
    let number = message.try_into().map(u64::from_le_bytes);
    number.map_err(|_| "a message is no number".into())
}
