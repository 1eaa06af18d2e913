//! Publishing and subscribing with messages of rdmsg: each is one message, so no framing is needed.
//!
//! A publisher has one window. The broker releases each message as soon as it has copied it, so no
//! subscriber delays a publisher. Each subscriber has a [`Queue`], bounded in messages and bytes. A
//! slow subscriber loses the oldest messages of its queue, and gets their number before the next
//! message.

mod hub;
mod message;
mod queue;

pub use self::{
    hub::Hub,
    message::{FromBroker, ToBroker, publish},
    queue::{Next, Queue, QueueLimits},
};
