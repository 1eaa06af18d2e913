//! The protocol as a pure state machine: hello, frames, credits, large messages, keepalive, close.
//!
//! [`Connection`] takes inputs (commands, connection manager events, completions, deadlines) and
//! returns outputs, which its driver performs. A `Connection` does no I/O, calls no foreign
//! function, and reads the time only from its inputs. The tests can therefore connect two
//! `Connection`s and run any interleaving. PROTOCOL.md describes the bytes that the two sides
//! exchange. [`tcp`] defines the PDUs on a TCP stream.
//!
//! This crate's API changes with each version. Programs should use the crate `rdmsg` instead.
#![forbid(unsafe_code)]
#![allow(
    clippy::exhaustive_enums,
    reason = "a new variant must be handled by the driver, which is of the same version"
)]

mod account;
mod batch;
mod chunk_pace;
mod connection;
mod control_messages;
mod credit;
mod frame;
mod hello;
mod inbound;
mod memory_shares;
mod negotiated;
mod outbound;
#[allow(missing_docs, reason = "the names of variants and fields suffice")]
mod output;
mod params;
#[cfg(test)]
mod protocol_page;
mod read_watchdog;
mod reason;
mod reason_name;
mod reject;
#[cfg(test)]
mod scale_simulation;
mod send_ring;
mod session;
mod statistics;
#[allow(missing_docs, reason = "the names of variants and fields suffice")]
pub mod tcp;
#[cfg(any(test, fuzzing))]
pub mod testing;

pub use self::{
    account::Account,
    batch::{MAX_PARTS, PART_HEADER_LEN, Parts, parts},
    chunk_pace::{LONGEST_CHUNK, SHORTEST_CHUNK},
    connection::{Activity, Connection, Flush, MovedBytes, Proof, Releasing, SendMethod, Stall},
    control_messages::{CONTROL_WINDOW, ControlRefused, MAX_CONTROL_MESSAGE},
    credit::CONTROL_RECEIVES,
    frame::{Descriptor, HEADER_LEN, rest_of_message},
    hello::{PRIVATE_DATA_MAX, PrivateBytes, REPLY_DATA_MAX, REQUEST_DATA_MAX},
    memory_shares::{Gauge, Host, Part},
    negotiated::{Capabilities, Negotiated, ReadDepth},
    output::{
        Arrival, BatchRoom, Clock, CmCall, CmInput, CmOp, DrainSide, Event, FragmentCopy, Note,
        Output, Read, Refusal, SendRefused, Topic, Transmit, TransportTraits, Work,
    },
    params::{Fragmentation, Params, SessionOffer},
    reason::{CloseReason, DeviceFault, Mismatch, PeerTimeout, Phase, RAISE_MEMLOCK, Violation},
    reject::{REJECT_DATA_MAX, Reject, RejectCode},
    send_ring::{CONTROL_SENDS, READS},
    session::{
        ResumeRefused, ResumeRequest, SESSION_ID_LEN, Session, SessionId, SessionOver, Unconfirmed,
    },
    statistics::Statistics,
};
