use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
};

use ::tokio::{io::Ready, task::coop::poll_proceed};

use crate::{endpoint::Endpoint, link::Awaited, poll::WaiterId};

/// The waiter id of a task that waits on a connection. Dropping the task's future unregisters the
/// task.
struct Turn<'a> {
    endpoint: &'a Endpoint,
    waiter_id: WaiterId,
    waits: bool,
}

/// Calls `poll` until it returns `Ready`. All calls of `poll` get the same waiter id, which no
/// other call of this function uses.
pub(super) async fn take_turn<T>(
    endpoint: &Endpoint,
    mut poll: impl FnMut(&mut Context<'_>, WaiterId) -> Poll<T>,
) -> T {
    let mut turn = Turn {
        endpoint,
        waiter_id: endpoint.new_waiter_id(),
        waits: false,
    };
    poll_fn(|cx| {
        let polled = cooperate(cx, |cx| poll(cx, turn.waiter_id));
        turn.waits = polled.is_pending();
        polled
    })
    .await
}

/// Waits until `exact` or `assumed` returns at least one state. Then returns the states of both
/// functions. Calls the functions immediately, and again after each event that wakes the task.
pub(super) async fn any_of(
    endpoint: &Endpoint,
    exact: impl Fn() -> Ready,
    assumed: impl Fn() -> Ready,
) -> Ready {
    let some = |states: Ready| (!states.is_empty()).then_some(states);
    take_turn(endpoint, |cx, waiter_id| {
        let waiter = (waiter_id, Awaited::Answer);
        match endpoint.poll_until(cx, waiter, || some(exact())) {
            Poll::Ready(states) => Poll::Ready(states | assumed()),
            Poll::Pending => match some(assumed()) {
                Some(states) => {
                    endpoint.unregister_waiter(waiter_id);
                    Poll::Ready(states)
                }
                None => Poll::Pending,
            },
        }
    })
    .await
}

/// Calls `poll` if the task's budget for cooperative scheduling is not used up. Otherwise returns
/// `Pending`, so that other tasks can run.
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
            self.endpoint.unregister_waiter(self.waiter_id);
        }
    }
}
