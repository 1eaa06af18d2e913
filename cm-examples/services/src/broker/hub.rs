use std::{
    collections::{HashMap, HashSet},
    fmt::Write,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rdmsg::{Error, tokio::Endpoint};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{
    message::{FromBroker, ToBroker},
    queue::{Next, Queue, QueueLimits},
};
use crate::Result;

/// The handle of the task that sends the messages from a subscriber's queue.
type Sending = JoinHandle<Result<(), Error>>;

/// The state of the broker: the subscribers, their topics, and counters.
#[derive(Debug)]
pub struct Hub {
    limits: QueueLimits,
    subscribers: RwLock<HashMap<u64, Arc<Subscriber>>>,
    published: AtomicU64,
    delivered: AtomicU64,
    missed: AtomicU64,
    /// The largest number of bytes that any subscriber's queue has contained so far.
    most_waiting: AtomicU64,
}

#[derive(Debug)]
struct Subscriber {
    queue: Queue,
    topics: Mutex<HashSet<String>>,
}

impl Hub {
    /// Creates a broker without clients. `limits` apply to each subscriber's queue.
    #[must_use]
    pub fn new(limits: QueueLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            subscribers: RwLock::default(),
            published: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            most_waiting: AtomicU64::new(0),
        })
    }

    /// Serves one client until the client closes the connection or `stop` is cancelled. Then sends
    /// the messages that are still in the client's queue, and closes the connection.
    ///
    /// # Errors
    ///
    /// Fails if the connection breaks or the client sends a malformed message.
    pub async fn serve(self: Arc<Self>, endpoint: Endpoint, stop: CancellationToken) -> Result<()> {
        let mut sending = None;
        let received = tokio::select! {
            received = self.receive(&endpoint, &mut sending) => received,
            () = stop.cancelled() => Ok(()),
        };
        let Some((subscriber, task)) = sending else {
            endpoint.close().await?;
            return received;
        };
        self.subscribers
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&endpoint.get_ref().info().id);
        subscriber.queue.end();
        if received.is_err() {
            task.abort();
            endpoint.get_ref().abort(0);
            return received;
        }
        task.await??;
        Ok(endpoint.close().await?)
    }

    /// Executes the requests of a client until the client closes the connection or finishes its
    /// sending direction.
    async fn receive(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        sending: &mut Option<(Arc<Subscriber>, Sending)>,
    ) -> Result<()> {
        loop {
            let message = match endpoint.recv().await {
                Ok(message) => message,
                Err(Error::PeerFinished) => return Ok(()),
                Err(Error::Disconnected(reason)) if reason.is_clean() => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            match ToBroker::parse(&message)? {
                ToBroker::Publish { topic, .. } => self.publish(topic, &message),
                ToBroker::Subscribe(topic) => {
                    let (subscriber, _) =
                        sending.get_or_insert_with(|| self.start_sending(endpoint));
                    let topics = &subscriber.topics;
                    let mut topics = topics.lock().unwrap_or_else(PoisonError::into_inner);
                    topics.insert(topic.to_owned());
                }
                ToBroker::Ask => {
                    let statistics = FromBroker::statistics(&self.statistics());
                    endpoint.send(&statistics).await?;
                }
            }
        }
    }

    fn start_sending(self: &Arc<Self>, endpoint: &Endpoint) -> (Arc<Subscriber>, Sending) {
        let subscriber = Arc::new(Subscriber {
            queue: Queue::new(self.limits),
            topics: Mutex::default(),
        });
        self.subscribers
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(endpoint.get_ref().info().id, Arc::clone(&subscriber));
        let sending = Arc::clone(self).send(endpoint.clone(), Arc::clone(&subscriber));
        (subscriber, tokio::spawn(sending))
    }

    /// Sends the messages in the subscriber's queue until the queue ends. While the subscriber's
    /// receive window is full, each send waits. If the queue becomes full during this wait, it
    /// drops its oldest messages.
    async fn send(
        self: Arc<Self>,
        endpoint: Endpoint,
        subscriber: Arc<Subscriber>,
    ) -> Result<(), Error> {
        loop {
            match subscriber.queue.next().await {
                Next::Missed(count) => endpoint.send(&FromBroker::missed(count)).await?,
                Next::Message(message) => {
                    endpoint.send(&message).await?;
                    self.delivered.fetch_add(1, Ordering::Relaxed);
                }
                Next::End => return Ok(()),
            }
        }
    }

    fn publish(&self, topic: &str, publish: &[u8]) {
        self.published.fetch_add(1, Ordering::Relaxed);
        // Copy the message once for all subscribers, so that the received message can be dropped.
        // Dropping the received message returns the publisher's credit without waiting for any
        // subscriber.
        let message = FromBroker::published(publish);
        let subscribers = &self.subscribers;
        let subscribers = subscribers.read().unwrap_or_else(PoisonError::into_inner);
        for subscriber in subscribers.values() {
            let topics = &subscriber.topics;
            let topics = topics.lock().unwrap_or_else(PoisonError::into_inner);
            if topics.contains(topic) {
                let missed = subscriber.queue.push(message.clone());
                self.missed.fetch_add(missed, Ordering::Relaxed);
                let (_, bytes) = subscriber.queue.len();
                self.most_waiting.fetch_max(bytes as u64, Ordering::Relaxed);
            }
        }
    }

    /// Returns the statistics as one line, in which each name is followed by its number.
    #[must_use]
    pub fn statistics(&self) -> String {
        let subscribers = &self.subscribers;
        let subscribers = subscribers.read().unwrap_or_else(PoisonError::into_inner);
        let (mut messages, mut bytes) = (0, 0);
        for subscriber in subscribers.values() {
            let (more, longer) = subscriber.queue.len();
            messages += more;
            bytes += longer;
        }
        let mut text = format!(
            "subscribers {} waiting-messages {messages} waiting-bytes {bytes}",
            subscribers.len()
        );
        for (name, counter) in [
            ("most-waiting-bytes", &self.most_waiting),
            ("published", &self.published),
            ("delivered", &self.delivered),
            ("missed", &self.missed),
        ] {
            let _ = write!(text, " {name} {}", counter.load(Ordering::Relaxed));
        }
        text
    }
}
