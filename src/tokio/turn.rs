use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
};

use ::tokio::task::coop::poll_proceed;

use crate::{Endpoint, link::Awaited, sync::Seat};

/// A task's place among those that wait on a connection, left when its future is dropped.
struct Turn<'a> {
    endpoint: &'a Endpoint,
    seat: Seat,
    waits: bool,
}

/// Polls until it is ready, with a seat of its own.
pub(super) async fn take_turn<T>(
    endpoint: &Endpoint,
    mut poll: impl FnMut(&mut Context<'_>, Seat) -> Poll<T>,
) -> T {
    let mut turn = Turn {
        endpoint,
        seat: endpoint.seat(),
        waits: false,
    };
    poll_fn(|cx| {
        let polled = cooperate(cx, |cx| poll(cx, turn.seat));
        turn.waits = polled.is_pending();
        polled
    })
    .await
}

/// Waits until `ready` returns something, which it may do after any event.
pub(super) async fn any_of<T>(endpoint: &Endpoint, mut ready: impl FnMut() -> Option<T>) -> T {
    take_turn(endpoint, |cx, seat| {
        endpoint.poll_until(cx, (seat, Awaited::Answer), &mut ready)
    })
    .await
}

/// Polls if the task has some of its budget left.
pub(super) fn cooperate<T>(
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    let coop = ready!(poll_proceed(cx));
    let polled = poll(cx);
    if polled.is_ready() {
        coop.made_progress();
    }
    polled
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.waits {
            self.endpoint.leave_seat(self.seat);
        }
    }
}
