//! A publish-subscribe service over rdmsg. The protocol needs no framing, because each request and
//! each published message is one rdmsg message.
//!
//! The broker's receive window limits the number of messages that a publisher has in flight. The
//! broker copies each message and then returns the message's credit to the publisher, so no
//! subscriber delays a publisher. Each subscriber has a [`Queue`], which limits the number of
//! messages and the number of bytes. If the subscriber is slow, the queue drops its oldest
//! messages. The broker then sends the number of dropped messages before the next message.

mod hub;
mod message;
mod queue;

pub use self::{
    hub::Hub,
    message::{FromBroker, ToBroker, publish},
    queue::{Next, Queue, QueueLimits},
};
