//! Connection-managed messaging over RDMA.
#![deny(unsafe_code)]

pub mod cm;
mod completion;
mod config;
mod connector;
mod endpoint;
mod engine;
mod error;
mod listener;
mod message;
mod proto;
pub mod status;
mod sys;
pub mod verbs;

pub use crossbeam_channel;

pub use crate::{
    completion::Completion,
    config::{Config, Polling},
    connector::Connector,
    endpoint::Endpoint,
    engine::Engine,
    error::{Error, TrySendError},
    listener::{Listener, Request},
    message::Message,
    proto::{CloseReason, Mismatch, Negotiated, Phase, Violation},
};
