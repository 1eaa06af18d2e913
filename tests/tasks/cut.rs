//! Futures that are dropped in the middle.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Drops a future once it was pending so many times.
pub(crate) struct Cut<F> {
    future: Option<Pin<Box<F>>>,
    left: u32,
}

/// What the future returns, or nothing if it was pending `times` times: then it is dropped.
pub(crate) fn cut<F: Future>(future: F, times: u32) -> Cut<F> {
    Cut {
        future: Some(Box::pin(future)),
        left: times,
    }
}

impl<F: Future> Future for Cut<F> {
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
        // Whether it is woken is not the question here.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
