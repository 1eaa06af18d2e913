//! Drops futures before they complete.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Polls the inner future, and drops it when `left` + 1 further polls have returned `Pending`.
pub(crate) struct DropAfter<F> {
    future: Option<Pin<Box<F>>>,
    left: u32,
}

/// Polls `future` until it completes, and returns its result. If `times + 1` polls return
/// `Pending`, drops `future` and returns `None`.
pub(crate) fn drop_after_polls<F: Future>(future: F, times: u32) -> DropAfter<F> {
    DropAfter {
        future: Some(Box::pin(future)),
        left: times,
    }
}

impl<F: Future> Future for DropAfter<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else {
            panic!("polled after it was ready");
        };
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            self.future = None;
            return Poll::Ready(Some(output));
        }
        if self.left == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        self.left -= 1;
        // Wake the task, so that the test does not depend on wake-ups by the inner future.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
