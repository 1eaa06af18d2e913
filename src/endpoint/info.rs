use crate::proto::{Capabilities, CloseReason, Negotiated};

/// The facts about a connection: [`Endpoint::info`](crate::Endpoint::info).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// The connection's number in this process, which the log, the metrics and `rdmsg top` show as
    /// well.
    ///
    /// No other connection of the process ever has it. A connection that
    /// [resumes](crate::Config::resume) keeps it.
    pub id: u64,
    /// The program's name for the connection: [`Connector::label`](crate::Connector::label),
    /// [`Request::label`](crate::Request::label), or else
    /// [`ListenerBuilder::label`](crate::ListenerBuilder::label).
    pub label: Option<String>,
    /// The values on which the two sides agreed when the connection was established. They may
    /// change when it [resumes](crate::Config::resume).
    pub negotiated: Option<Negotiated>,
    /// The operations that the devices of both sides support; `None` when the connection has ended.
    pub capabilities: Option<Capabilities>,
    /// The largest message in bytes that can be sent: the peer's
    /// [`max_message`](crate::Config::max_message); 0 when the connection has ended.
    pub send_limit: u64,
    /// The private data that the peer's program sent while connecting, empty if it gave none.
    ///
    /// A connecting peer gives it to [`Connector::private_data`](crate::Connector::private_data),
    /// an accepting one to [`Request::accept_with`](crate::Request::accept_with).
    pub peer_data: Vec<u8>,
    /// Whether the connection is lost and its session waits for the next one.
    ///
    /// See [`Config::resume`](crate::Config::resume), without which it is false.
    pub is_suspended: bool,
    /// Why the connection has ended, once it has. Messages may still wait to be received.
    pub close_reason: Option<CloseReason>,
}
