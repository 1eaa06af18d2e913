use bytes::{BufMut, Bytes, BytesMut};

use crate::Result;

const SUBSCRIBE: u8 = b'S';
const PUBLISH: u8 = b'P';
const ASK: u8 = b'?';
const MESSAGE: u8 = b'M';
const MISSED: u8 = b'L';
const STATISTICS: u8 = b'=';

/// A message from a client to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "this is the protocol")]
pub enum ToBroker<'a> {
    /// Subscribes the client to this topic.
    Subscribe(&'a str),
    /// Publishes a message.
    Publish {
        /// The topic of the message.
        topic: &'a str,
        /// The content of the message.
        payload: &'a [u8],
    },
    /// Requests the statistics of the broker.
    Ask,
}

/// A message from the broker to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "this is the protocol")]
pub enum FromBroker<'a> {
    /// A message that a client has published.
    Message {
        /// The topic of the message.
        topic: &'a str,
        /// The content of the message.
        payload: &'a [u8],
    },
    /// The number of messages that the broker dropped after its previous message to this
    /// subscriber, because the subscriber was too slow.
    Missed(u64),
    /// The statistics as one line, in which each name is followed by its number.
    Statistics(&'a str),
}

/// Returns the message with which a client publishes `payload` on `topic`.
///
/// # Errors
///
/// Fails if the topic is longer than 255 bytes.
pub fn publish(topic: &str, payload: &[u8]) -> Result<Bytes> {
    let len = u8::try_from(topic.len()).map_err(|_| "the topic is longer than 255 bytes")?;
    let mut message = BytesMut::with_capacity(2 + topic.len() + payload.len());
    message.put_slice(&[PUBLISH, len]);
    message.put_slice(topic.as_bytes());
    message.put_slice(payload);
    Ok(message.freeze())
}

impl<'a> ToBroker<'a> {
    /// Parses a message from a client.
    ///
    /// # Errors
    ///
    /// Fails if the message is malformed.
    pub fn parse(message: &'a [u8]) -> Result<Self> {
        match message.split_first() {
            Some((&SUBSCRIBE, topic)) => Ok(Self::Subscribe(std::str::from_utf8(topic)?)),
            Some((&PUBLISH, rest)) => {
                let (topic, payload) = split(rest)?;
                Ok(Self::Publish { topic, payload })
            }
            Some((&ASK, [])) => Ok(Self::Ask),
            _ => Err("the message is empty, or its type or its length is invalid".into()),
        }
    }

    /// Returns the message with which a client subscribes to `topic`.
    #[must_use]
    pub fn subscribe(topic: &str) -> Vec<u8> {
        [&[SUBSCRIBE], topic.as_bytes()].concat()
    }

    /// Returns the message with which a client requests the statistics.
    #[must_use]
    pub fn ask() -> Vec<u8> {
        vec![ASK]
    }
}

impl<'a> FromBroker<'a> {
    /// Parses a message from the broker.
    ///
    /// # Errors
    ///
    /// Fails if the message is malformed.
    pub fn parse(message: &'a [u8]) -> Result<Self> {
        match message.split_first() {
            Some((&MESSAGE, rest)) => {
                let (topic, payload) = split(rest)?;
                Ok(Self::Message { topic, payload })
            }
            Some((&MISSED, count)) => Ok(Self::Missed(u64::from_be_bytes(count.try_into()?))),
            Some((&STATISTICS, text)) => Ok(Self::Statistics(std::str::from_utf8(text)?)),
            _ => Err("the message is empty, or its type is invalid".into()),
        }
    }

    /// Converts a publisher's message into the message for the subscribers. The two messages differ
    /// only in the first byte, which is the type.
    pub(super) fn published(publish: &[u8]) -> Bytes {
        let mut message = BytesMut::from(publish);
        message[0] = MESSAGE;
        message.freeze()
    }

    /// Returns the message that tells a subscriber the number of dropped messages.
    pub(super) fn missed(count: u64) -> Vec<u8> {
        [&[MISSED], &count.to_be_bytes()[..]].concat()
    }

    /// Returns the message that reports the statistics to a client.
    pub(super) fn statistics(text: &str) -> Vec<u8> {
        [&[STATISTICS], text.as_bytes()].concat()
    }
}

/// Splits bytes into a topic and a payload. The first byte is the length of the topic.
fn split(rest: &[u8]) -> Result<(&str, &[u8])> {
    let short = "the message ends within its topic";
    let (len, rest) = rest.split_first().ok_or(short)?;
    let (topic, payload) = rest.split_at_checked(usize::from(*len)).ok_or(short)?;
    Ok((std::str::from_utf8(topic)?, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriber_receives_published_message() {
        let published = publish("news", b"it rains").unwrap();
        let (topic, payload) = ("news", &b"it rains"[..]);
        let parsed = ToBroker::parse(&published).unwrap();
        assert_eq!(parsed, ToBroker::Publish { topic, payload });
        let message = FromBroker::published(&published);
        let parsed = FromBroker::parse(&message).unwrap();
        assert_eq!(parsed, FromBroker::Message { topic, payload });
        assert!(publish(&"n".repeat(256), b"").is_err());
    }

    #[test]
    fn malformed_message_is_refused() {
        for wrong in [&b""[..], b"X", b"P", b"P\x05news", b"S\xff", b"?more"] {
            assert!(ToBroker::parse(wrong).is_err(), "{wrong:?}");
        }
        for wrong in [&b""[..], b"P\x01t", b"M", b"L123"] {
            assert!(FromBroker::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
