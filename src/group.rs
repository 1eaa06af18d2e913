use std::{fmt, sync::Arc, time::Duration};

use crossbeam_channel::{Receiver, TryRecvError};

use crate::{
    endpoint::Endpoint,
    error::Error,
    link::{Completion, Deadline, GroupQueue},
    local::{Local, StandIn},
    os::PerProcess,
};

/// One receiver for the completions of many connections.
///
/// A [`select!`](crossbeam_channel::select) over n channels checks all of them each time. A group
/// has a constant cost for each completion, independent of the number of connections in it. Any
/// thread can add and remove endpoints at any time.
///
/// A thread that waits in [`next_completion`](Self::next_completion) polls the connections itself,
/// so no other thread has to wake it for each completion. If no thread has called `next_completion`
/// for some milliseconds, the [`Engine`](crate::Engine)'s thread polls the connections. The
/// engine's thread also polls them if the program uses the channel of
/// [`completions`](Self::completions), for example in a `select!` over several channels.
///
/// The number of untaken completions is limited by the window of each connection, as without a
/// group.
///
/// The group does not own the endpoints. Dropping the last handle of an endpoint closes its
/// connection, and the group returns no further completions of this connection. The program must
/// therefore keep the endpoints, for instance in a map by key. Clones are handles to the same
/// group. Dropping the last handle of the group removes all members, and drops the completions that
/// were not taken.
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
/// // The clients by key, each with its unanswered messages.
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
///                 // Each kept message occupies a credit. A client without credits has to wait.
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
    /// [`Error::Grouped`], even if they were already waiting. The endpoint's own
    /// [`completions`](Endpoint::completions) are empty, and its fd for
    /// [`Interest::Readable`](crate::Interest::Readable) reports only the end of the connection.
    /// When the connection ends, it leaves the group. The group still returns the last completion,
    /// [`Completion::Disconnected`].
    ///
    /// A connection that has ended can be added as long as the application has not taken its
    /// `Disconnected`.
    ///
    /// # Errors
    ///
    /// * [`Error::Grouped`] when the connection is already in a group.
    /// * [`Error::Disconnected`] when the connection has ended, and [`Completion::Disconnected`]
    ///   was taken.
    /// * [`Error::Forked`] in a child process that inherited the group.
    pub fn add_with_key(&self, endpoint: &Endpoint, key: u64) -> Result<(), Error> {
        if self.inner.is_inherited() {
            return Err(Error::Forked);
        }
        endpoint.join(&self.inner.queue, key)
    }

    /// Removes a connection. Returns whether it was in this group.
    ///
    /// The group may still return earlier completions of the connection. Later completions are
    /// delivered to the endpoint itself. A connection that has ended is no longer in the group.
    pub fn remove(&self, endpoint: &Endpoint) -> bool {
        endpoint.leave(&self.inner.queue)
    }

    /// Waits for the next completion of any connection, and returns it with the connection's key.
    /// Waits without a time limit, even if the group has no connections.
    ///
    /// The waiting thread polls the connections itself. Several threads may wait.
    ///
    /// # Errors
    ///
    /// * [`Error::Os`] when the process has no free file descriptor. A group needs two descriptors.
    /// * [`Error::Forked`] in a child process that inherited the group.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::collections::HashMap;
    ///
    /// use rdmsg::{Completion, Endpoint, Error, Group};
    ///
    /// /// Echoes the messages of all clients until they have closed.
    /// fn serve(group: &Group, clients: &mut HashMap<u64, Endpoint>) -> Result<(), Error> {
    ///     while !clients.is_empty() {
    ///         match group.next_completion()? {
    ///             (key, Completion::Received(message)) => clients[&key].send(&message)?,
    ///             (key, Completion::Disconnected(_)) => drop(clients.remove(&key)),
    ///             _ => {}
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn next_completion(&self) -> Result<(u64, Completion), Error> {
        self.next_until(&Deadline::never())
    }

    /// Does the same as [`next_completion`](Self::next_completion), waiting no longer than
    /// `timeout`.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when no completion arrived in time, and the errors of
    /// [`next_completion`](Self::next_completion).
    pub fn next_completion_timeout(&self, timeout: Duration) -> Result<(u64, Completion), Error> {
        self.next_until(&Deadline::after(timeout))
    }

    /// Takes the next completion of any connection without waiting. Returns `None` when there is no
    /// completion.
    ///
    /// # Errors
    ///
    /// The errors of [`next_completion`](Self::next_completion).
    pub fn try_next_completion(&self) -> Result<Option<(u64, Completion)>, Error> {
        match self.next_until(&Deadline::after(Duration::ZERO)) {
            Ok(next) => Ok(Some(next)),
            Err(Error::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn next_until(&self, deadline: &Deadline) -> Result<(u64, Completion), Error> {
        let Inner { queue, completions } = &*self.inner;
        queue.taker.note_taking_thread();
        let take = || match completions.try_recv() {
            Ok(next) => Some(Ok(next)),
            Err(TryRecvError::Empty) => None,
            // Only the stand-in, which replaces an inherited group in a child process, has a closed
            // channel.
            Err(TryRecvError::Disconnected) => Some(Err(Error::Forked)),
        };
        if let Some(next) = take() {
            return next;
        }
        let waited = queue.members.wait_until(completions, deadline, take);
        waited
            .map_err(Error::from_os)?
            .unwrap_or(Err(Error::TimedOut))
    }

    /// Returns the channel with the completions of the connections, each with its connection's key.
    ///
    /// The engine's thread polls the connections and fills the channel. A program should use either
    /// the channel or [`next_completion`](Self::next_completion). If a program uses both, each
    /// change between the two makes another thread poll all connections, and completions may be
    /// delayed by some milliseconds.
    ///
    /// Use the channel with [`crossbeam_channel::select!`], or from threads that wait in
    /// [`recv`](Receiver::recv) or iterate over the channel. Several threads may take completions.
    /// The channel stays open while the group exists, even without connections.
    #[must_use]
    pub fn completions(&self) -> &Receiver<(u64, Completion)> {
        let Inner { queue, completions } = &*self.inner;
        queue.members.release();
        queue.taker.note_taking_thread();
        completions
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

#[cfg(test)]
mod tests {
    use std::{array, thread, time::Instant};

    use super::*;
    use crate::{listener::Listener, poll::Owner};

    /// A timeout that is never reached, even on a busy machine.
    const TIME_LIMIT: Duration = Duration::from_secs(60);

    fn wait_until(is_done: impl Fn() -> bool) {
        let deadline = Instant::now() + TIME_LIMIT;
        while !is_done() {
            assert!(Instant::now() < deadline);
            thread::yield_now();
        }
    }

    /// Calls `again` until the members have these owners. The wait is necessary because the
    /// engine's thread may still have to handle earlier notices.
    fn expect(members: &[Endpoint], owners: [Owner; 2], again: impl Fn()) {
        let owner = |member: &Endpoint| member.link_and_engine().0.poller.owner();
        wait_until(|| {
            again();
            members.iter().map(owner).eq(owners)
        });
    }

    #[test]
    fn waiting_thread_polls_the_members() {
        let listener = Listener::bind("tcp://127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr());
        let pairs: [_; 2] = array::from_fn(|_| {
            let near = Endpoint::connect(address.as_str()).unwrap();
            (near, listener.accept().unwrap())
        });
        let (near, members): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let group = Group::new();
        for member in &members {
            group.add(member).unwrap();
        }
        let look = || assert!(group.try_next_completion().unwrap().is_none());
        for number in 0..9 {
            expect(&members, [Owner::Loop; 2], look);
            near[number % 2].send(b"x").unwrap();
            let (key, _) = group.next_completion_timeout(TIME_LIMIT).unwrap();
            assert_eq!(key, members[number % 2].id());
        }
        // The use of the channel makes the engine's thread poll. Then `look` makes this thread
        // poll.
        assert!(group.completions().is_empty());
        expect(&members, [Owner::Engine; 2], || {});
        expect(&members, [Owner::Loop; 2], look);
        assert!(group.remove(&members[0]));
        expect(&members, [Owner::Engine, Owner::Loop], look);
        drop(group);
        expect(&members, [Owner::Engine; 2], || {});
    }

    #[test]
    fn ended_members_are_removed() {
        let group = Group::new();
        let (near, far) = Endpoint::pair().unwrap();
        group.add(&far).unwrap();
        assert_eq!(group.inner.queue.members.len(), 1);
        drop((near, far));
        wait_until(|| group.inner.queue.members.len() == 0);
    }
}
