use std::{fmt, sync::Arc};

use crossbeam_channel::Receiver;

use crate::{
    endpoint::Endpoint,
    error::Error,
    link::{Completion, GroupQueue},
    local::{Local, StandIn},
    os::PerProcess,
};

/// One receiver for the completions of many connections.
///
/// A [`select!`](crossbeam_channel::select) over n channels checks all of them each time. A group
/// has a constant cost for each completion, independent of the number of connections in it. Any
/// thread can add and remove endpoints at any time. The [`Engine`](crate::Engine)'s thread polls
/// them.
///
/// The number of untaken completions is limited by the window of each connection, as without a
/// group.
///
/// The group does not own the endpoints. Keep them elsewhere, for instance in a map by key, because
/// dropping the last handle of an endpoint closes the connection, without further completions.
/// Clones are handles to the same group. Dropping the last handle removes all members, and drops
/// the completions that were not taken.
///
/// # Examples
///
/// A server with one thread, which no client can block:
///
/// ```no_run
/// use std::collections::HashMap;
///
/// use rdmsg::{Completion, Endpoint, Group, Listener, Message, crossbeam_channel::select};
///
/// # fn main() -> Result<(), rdmsg::Error> {
/// let listener = Listener::bind("0.0.0.0:7471")?;
/// let group = Group::new();
/// // Each client, and the message whose answer waits for room.
/// let mut clients: HashMap<u64, (Endpoint, Vec<Message>)> = HashMap::new();
/// loop {
///     select! {
///         recv(listener.accepted()) -> endpoint => {
///             let Ok(endpoint) = endpoint else { break };
///             let endpoint = endpoint?;
///             let key = group.add(&endpoint)?;
///             clients.insert(key, (endpoint, Vec::new()));
///         }
///         recv(group.completions()) -> completion => {
///             let Ok((key, completion)) = completion else { break };
///             let Some((endpoint, waiting)) = clients.get_mut(&key) else { continue };
///             match completion {
///                 // While a message is kept, its sender is held back.
///                 Completion::Received(message) => waiting.push(message),
///                 Completion::Disconnected(_) => drop(clients.remove(&key)),
///                 _ => {}
///             }
///             // …
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Group {
    inner: Local<Inner>,
}

struct Inner {
    queue: Arc<GroupQueue>,
    completions: Receiver<(u64, Completion)>,
}

impl Group {
    /// Creates a group without connections.
    #[must_use]
    pub fn new() -> Self {
        let (queue, completions) = GroupQueue::new();
        Self {
            inner: Local::new(Arc::new(Inner { queue, completions })),
        }
    }

    /// Adds a connection. Returns the key of its completions: the connection's
    /// [id](crate::Info::id), which is unique in the process.
    ///
    /// # Errors
    ///
    /// The errors of [`add_with_key`](Self::add_with_key).
    pub fn add(&self, endpoint: &Endpoint) -> Result<u64, Error> {
        let key = endpoint.id();
        self.add_with_key(endpoint, key)?;
        Ok(key)
    }

    /// Adds a connection whose completions get this `key`.
    ///
    /// The application chooses the keys, which need not be unique. The group first returns the
    /// completions that were already in the connection's channel. While the connection is in the
    /// group, calls that receive ([`recv`](Endpoint::recv),
    /// [`next_completion`](Endpoint::next_completion) and their variants) return
    /// [`Error::Grouped`], even if they already wait. The connection's own
    /// [`completions`](Endpoint::completions) are empty, and its fd for
    /// [`Interest::Readable`](crate::Interest::Readable) reports only the end. After
    /// [`Completion::Disconnected`] the connection is no longer in the group.
    ///
    /// A connection that has ended can be added until its `Disconnected` was taken.
    ///
    /// # Errors
    ///
    /// * [`Error::Grouped`] when the connection is already in a group.
    /// * [`Error::Disconnected`] when the connection has ended, and [`Completion::Disconnected`]
    ///   was taken.
    pub fn add_with_key(&self, endpoint: &Endpoint, key: u64) -> Result<(), Error> {
        if self.inner.is_inherited() {
            return Err(Error::Forked);
        }
        endpoint.join(&self.inner.queue, key)
    }

    /// Removes a connection. Returns whether it was in this group.
    ///
    /// [`completions`](Self::completions) may still contain earlier completions of the connection.
    /// Later completions are delivered to the endpoint itself. A connection that has ended is not
    /// in the group.
    pub fn remove(&self, endpoint: &Endpoint) -> bool {
        endpoint.leave(&self.inner.queue)
    }

    /// Returns the completions of the connections, each with its connection's key.
    ///
    /// Use it with [`crossbeam_channel::select!`], or from threads that wait in
    /// [`recv`](Receiver::recv) or iterate. Several threads may take completions from it. The
    /// channel stays open while the group exists, even without connections.
    #[must_use]
    pub fn completions(&self) -> &Receiver<(u64, Completion)> {
        self.inner.queue.taker.note_taking_thread();
        &self.inner.completions
    }
}

impl Default for Group {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("waiting", &self.inner.completions.len())
            .finish_non_exhaustive()
    }
}

impl StandIn for Inner {
    fn stand_in() -> &'static Self {
        static ENDED: PerProcess<Inner> = PerProcess::new(|| {
            let (queue, completions) = GroupQueue::new();
            queue.close();
            Inner { queue, completions }
        });
        ENDED.get()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
    }
}
