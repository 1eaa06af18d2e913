//! Publishing and subscribing by messages of rdmsg: a message each, so nothing is framed.
//!
//! A publisher has one window, which the broker gives back as soon as it has copied a message, so
//! no subscriber holds a publisher up. Each subscriber has a [`Queue`], bounded in messages and
//! bytes. A slow subscriber loses the oldest messages of its queue, and gets their number before
//! the next message.

mod hub;
mod message;
mod queue;

pub use self::{
    hub::Hub,
    message::{FromBroker, ToBroker, publish},
    queue::{Next, Queue, QueueLimits},
};
