//! Orders that are executed exactly once, even if the server is replaced repeatedly.
//!
//! Each message of a client is the number of an order, and the server replies with the same number.
//! Before a server exits, it sends an empty message, which asks the client to reconnect. The client
//! then finishes its sending direction, so the server knows that no further order arrives on this
//! connection. The server replies to all orders and closes the connection. The client therefore
//! knows the result of each order and sends no order twice.

use std::{collections::HashSet, sync::atomic::AtomicU64, sync::atomic::Ordering};

use rdmsg::{Addresses, CloseReason, Connector, Error, tokio::Endpoint};
use tokio_util::sync::CancellationToken;

use crate::Result;

/// The maximum number of orders in flight on a connection. An order is in flight from its send
/// until its reply.
const OPEN: usize = 16;

/// Executes the orders of a client until the client finishes its sending direction, and then closes
/// the connection. If `stop` is cancelled, asks the client to finish.
///
/// # Errors
///
/// Fails if the connection is lost, or if a message is not an order number. If the connection is
/// lost, the client cannot know which of its orders in flight were executed.
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

/// Places orders with one server after another, and counts the replies. `connector` must be set to
/// retry refused connections, because no server listens during a replacement.
///
/// # Errors
///
/// Fails if no server listens in time, if a reply arrives twice, or if a connection is lost while
/// orders are in flight.
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

/// Places orders until `orders` is exhausted or the server asks the client to reconnect. Then waits
/// for the replies. Returns true if `orders` is exhausted.
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
                    return Err(format!("order {order} was answered twice").into());
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
    number.map_err(|_| "a message is not an order number".into())
}
