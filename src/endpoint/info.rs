use std::net::SocketAddr;

use crate::{
    proto::{Capabilities, CloseReason, Negotiated},
    transport_choice::Transport,
};

/// Properties and state of a connection, returned by [`Endpoint::info`](crate::Endpoint::info).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// The number of the connection in this process, as in the log, the metrics and `rdmsg top`.
    ///
    /// The process never reuses a number. A connection that [resumes](crate::Config::resume) keeps
    /// its number.
    pub id: u64,
    /// The name that the program has given to the connection with
    /// [`Connector::label`](crate::Connector::label), [`Request::label`](crate::Request::label) or
    /// [`ListenerBuilder::label`](crate::ListenerBuilder::label).
    pub label: Option<String>,
    /// This side's address. It may change when the connection [resumes](crate::Config::resume).
    pub local_addr: SocketAddr,
    /// The transport of the connection.
    ///
    /// [`TransportChoice::Auto`](crate::TransportChoice::Auto) chooses the transport when the
    /// connection is established. The transport may change when the connection
    /// [resumes](crate::Config::resume).
    pub transport: Transport,
    /// The values that the two sides negotiated when the connection was established. They may
    /// change when the connection [resumes](crate::Config::resume), and may be `None` while the
    /// connection is suspended.
    pub negotiated: Option<Negotiated>,
    /// The operations that the devices of both sides support; `None` after the connection has
    /// ended.
    pub capabilities: Option<Capabilities>,
    /// The size in bytes of the largest message that can be sent: the peer's
    /// [`max_message`](crate::Config::max_message), or 0 after the connection has ended.
    pub send_limit: u64,
    /// The private data that the peer's program sent while the connection was being established;
    /// may be empty.
    ///
    /// A connecting peer sets it with [`Connector::private_data`](crate::Connector::private_data),
    /// an accepting peer with [`Request::accept_with`](crate::Request::accept_with).
    pub peer_data: Vec<u8>,
    /// Whether the connection is lost and has not resumed yet.
    ///
    /// Always `false` without [`Config::resume`](crate::Config::resume).
    pub is_suspended: bool,
    /// The reason why the connection ended; `None` while it is open. After the end, unread messages
    /// can still be received.
    pub close_reason: Option<CloseReason>,
}
