//! The scopes of the searches.

use super::world::SideEvent;

/// The limits of a search: the parameters of both sides, and the maximum numbers of side events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) name: &'static str,
    pub(super) window: u16,
    /// The number of data slots of the send ring.
    pub(super) slots: u32,
    /// The maximum length in bytes of the chunks in which a large message is read.
    pub(super) chunk: u64,
    /// The maximum number of bytes of large messages in flight.
    pub(super) memory: u64,
    /// The maximum number of control messages that can wait for the application.
    pub(super) control_window: u32,
    pub(super) shared: bool,
    /// Whether the search begins before the connection is established.
    pub(super) establishing: bool,
    pub(super) active_speaks_first: bool,
    /// Whether the request's private data are sent in a separate frame.
    pub(super) long_request: bool,
    pub(super) acknowledgements_get_lost: bool,
    /// The maximum number of occurrences of each side event, at A and at B.
    pub(super) side_events: &'static [(SideEvent, [u8; 2])],
}

pub(super) const SMALLEST: Scope = Scope {
    name: "",
    window: 1,
    slots: 1,
    chunk: 1 << 20,
    memory: 4 << 20,
    control_window: 1,
    shared: false,
    establishing: false,
    active_speaks_first: false,
    long_request: false,
    acknowledgements_get_lost: false,
    side_events: &[],
};

/// Creates a list of scopes. Each entry contains a name, followed by the fields that differ from
/// those of `SMALLEST`. The events that can occur follow the arrow. Each event has two numbers: the
/// maximum numbers of occurrences at A and at B.
macro_rules! scopes {
    ($($name:literal $($field:ident $value:expr),* => $($event:ident $a:literal $b:literal),*;)*)
    => {
        &[$(
            #[allow(clippy::needless_update, reason = "an entry may set all fields")]
            Scope {
                name: $name,
                side_events: &[$((SideEvent::$event, [$a, $b])),*],
                $($field: $value,)*
                ..SMALLEST
            }
        ),*]
    };
}

/// The scopes that each run of the tests searches. Searching all of them takes a few seconds.
pub(super) const QUICK: &[Scope] = scopes! {
    "a message and a close" => Send 1 0, Close 1 0;
    "a large message and a close" => Large 1 0, Close 1 0;
    "a control message and a close" => Control 1 0, Close 1 0;
    "a message and a lost host" => Send 1 0, Vanish 0 1;
};

/// Further scopes. Searching all of them takes about a minute.
pub(super) const SMALL: &[Scope] = scopes! {
    "messages both ways, both close" => Send 1 1, Close 1 1;
    "two messages one way, both close" => Send 2 0, Close 1 1;
    "two messages, window 2" window 2, slots 2 => Send 2 0, Close 1 1;
    "a large message, both close" => Large 1 0, Close 1 1;
    "a large message in two chunks" chunk 64 => Large 1 0, Close 1 1;
    "large messages both ways" window 2, slots 2 => Large 1 1, Close 1 0;
    "two large messages, memory for one" window 2, slots 2, memory 150 => Large 2 0, Close 0 1;
    "a small message behind a large one" window 2, slots 2 => Large 1 0, Send 1 0, Close 0 1;
    "fragments, both close" window 2, slots 2 => Fragments 1 0, Close 1 1;
    "fragments and messages" window 3, slots 3 => Fragments 2 0, Send 1 0, Close 0 1;
    "fragments behind a large message" window 3, slots 3 => Large 1 0, Fragments 1 0, Close 0 1;
    "there is no memory for fragments" window 2, slots 2
        => Fragments 1 0, LoseMemory 0 1, RestoreMemory 0 1, Close 0 1;
    "A is killed with fragments" window 2, slots 2 => Fragments 1 0, Kill 1 0, Close 0 1;
    "finishes" => Send 1 0, Finish 1 1, Close 1 0;
    "a flush" => Send 1 1, Flush 1 0, Close 1 0;
    "a flush behind a large message" window 2, slots 2 => Large 1 0, Flush 2 0, Close 0 1;
    "a batch" window 3 => Batch 1 0, ReleaseNewest 0 1, Close 1 0;
    "messages held back" => Send 1 0, Hold 2 0, Finish 1 0, Close 1 1;
    "messages are kept" window 3, slots 3 => Send 4 0, Keep 0 1, Close 0 1;
    "control messages and a message" => Control 2 0, Send 1 0, Close 0 1;
    "control messages both ways" => Control 1 1, Close 1 1;
    "three control messages, window 2" control_window 2 => Control 3 0, Close 1 0;
    "a control message behind kept messages" => Send 2 0, Keep 0 1, Control 1 0, Close 0 1;
    "a control message behind a large message" => Large 1 0, Control 1 0, Close 1 0;
    "a control message behind fragments" window 2, slots 2
        => Fragments 1 0, Control 1 0, Close 0 1;
    "a control message and a finish" => Finish 1 0, Control 1 0, Close 0 1;
    "a control message and an abort" => Control 2 0, Abort 1 0;
    "A is killed with control messages" => Control 2 0, Kill 1 0, Close 0 1;
    "requests to leave" => Leave 2 1, Close 0 1;
    "a request to leave and a flush" => Send 1 0, Leave 1 0, Flush 1 0, Close 1 0;
    "establishing" establishing true => Send 1 0, Close 1 0;
    "establishing, the active side speaks first" establishing true, active_speaks_first true
        => Send 0 1, Close 0 1;
    "a long request" establishing true, long_request true => Accept 0 1, Send 1 1, Close 1 0;
    "a long request is rejected" establishing true, long_request true => Reject 0 1;
    "a long request and control messages"
        establishing true, long_request true, control_window 2
        => Accept 0 1, Control 0 1, Close 0 1;
    "a long request, the active side speaks first"
        establishing true, active_speaks_first true, long_request true
        => Accept 0 1, Reject 0 1, Send 0 1, Close 0 1;
    "a peer is killed after a long request" establishing true, long_request true
        => Accept 0 1, Send 0 1, Kill 0 1;
    "an abort after a long request" establishing true, long_request true
        => Accept 0 1, Send 0 1, Abort 0 1;
    "an abort after a long request, acknowledgements get lost"
        establishing true, long_request true, acknowledgements_get_lost true
        => Accept 0 1, Send 0 1, Abort 0 1;
    "a rejection, acknowledgements get lost"
        establishing true, long_request true, acknowledgements_get_lost true
        => Reject 0 1, Kill 0 1;
    "a long request takes too long" establishing true, long_request true
        => Accept 0 1, Send 0 1, Wait 0 1, Close 0 1;
    "shared receives" shared true, window 3 => Send 3 0, Close 1 0;
    "acknowledgements get lost" acknowledgements_get_lost true => Send 1 0, Close 1 1;
    "drain markers get lost" => Send 1 0, LoseMarkers 1 1, Close 1 1;
    "aborts" => Send 1 0, Abort 1 1;
    "an abort of a close" => Send 1 0, Abort 0 1, Close 1 0;
    "A is killed" => Send 1 0, Kill 1 0, Close 0 1;
    "B is killed" => Send 1 0, Kill 0 1, Close 1 0;
    "A is killed with a large message" => Large 1 0, Kill 1 0, Close 1 0;
    "B is killed with a large message" => Large 1 0, Kill 0 1, Close 1 0;
    "B is killed during a flush" => Send 1 0, Flush 1 0, Kill 0 1;
    "a host loses its power" => Send 0 1, Vanish 1 0, Close 0 1;
    "a device is removed" => Send 1 0, Remove 1 0, Close 0 1;
    "a device gives up" => Send 1 0, GiveUp 1 0, Close 0 1;
    "a read is refused" => Large 1 0, Refuse 0 1, Kill 1 0, Close 1 0;
    "a close takes too long" => Send 0 1, Wait 1 0, Close 1 0;
    "a large message takes too long" => Large 1 0, Wait 2 0, Close 0 1;
    "there is no memory" => Large 1 0, LoseMemory 0 1, RestoreMemory 0 1;
};

/// Large scopes. Searching all of them takes hours.
pub(super) const LARGE: &[Scope] = scopes! {
    "three messages, window 2, both close" window 2, slots 2 => Send 2 1, Close 1 1;
    "messages both ways, window 3, both close" window 3, slots 4 => Send 2 2, Close 1 1;
    "large messages both ways, both close" window 2, slots 2 => Large 1 1, Send 1 0, Close 1 1;
    "fragments both ways, both close" window 3, slots 3 => Fragments 2 1, Send 1 1, Close 1 1;
    "four large messages" window 4, slots 4, chunk 64 => Large 4 0, Close 1 0;
    "finishes and flushes" => Send 1 1, Finish 1 1, Flush 1 1, Close 1 1;
    "batches both ways" window 3 => Batch 2 1, ReleaseNewest 1 1, Close 1 1;
    "establishing, both close" establishing true => Send 1 1, Close 1 1;
    "shared receives both ways" shared true, window 3 => Send 3 2, Close 1 1;
    "messages take too long" => Send 1 0, Wait 2 0, Close 1 1;
    "there is no memory for a close" => Large 1 0, LoseMemory 0 1, RestoreMemory 0 1, Close 1 1;
    "A is killed with messages both ways" => Send 1 1, Kill 1 0, Close 1 1;
    "a device is removed with messages both ways" => Send 1 1, Remove 1 0, Close 1 1;
    "a device gives up with messages both ways" => Send 1 1, GiveUp 1 1, Close 1 1;
    "aborts, acknowledgements get lost" acknowledgements_get_lost true
        => Send 1 1, Abort 1 1, Close 1 1;
    "control messages both ways, window 2" control_window 2 => Control 3 2, Close 1 1;
    "control messages and messages both ways" => Control 2 1, Send 1 1, Close 1 1;
    "everything takes too long" => Send 1 1, Wait 3 0, Close 1 1;
    "A is killed with large messages both ways" window 2, slots 2
        => Large 1 1, Kill 1 0, Close 1 1;
    "there is no memory on either side" window 2, slots 2
        => Large 1 1, LoseMemory 1 1, RestoreMemory 1 1;
};
pub(super) use scopes;
