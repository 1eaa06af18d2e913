//! A key-value store, and the Redis commands that access it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Bytes, BytesMut};

use crate::resp::{Reply, number};

/// The values of all keys, shared by all clients.
#[derive(Debug, Default)]
pub struct Store {
    values: Mutex<HashMap<Bytes, Value>>,
    requests: AtomicU64,
}

#[derive(Debug)]
enum Value {
    Text(Bytes),
    List(VecDeque<Bytes>),
}

/// The session's action after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is no third")]
pub enum After {
    /// Waits for the next request.
    GoOn,
    /// Ends the connection.
    Close,
}

#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

impl Store {
    /// Executes a request, and appends the reply to the output. Returns the session's next action.
    pub fn execute(&self, request: &[Bytes], output: &mut BytesMut) -> After {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let name = request[0].to_ascii_uppercase();
        let reply = self.reply(&name, &request[1..]);
        reply.unwrap_or_else(Reply::Error).write(output);
        if name == b"QUIT" {
            After::Close
        } else {
            After::GoOn
        }
    }

    fn values(&self) -> MutexGuard<'_, HashMap<Bytes, Value>> {
        // The map is consistent even if a thread panicked while it held the lock, so ignore the
        // poisoning.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reply(&self, name: &[u8], arguments: &[Bytes]) -> Result<Reply, String> {
        Ok(match (name, arguments) {
            (b"PING", []) => Reply::Status("PONG".to_owned()),
            (b"PING" | b"ECHO", [text]) => Reply::Bulk(text.clone()),
            (b"GET", [key]) => match self.values().get(key) {
                None => Reply::Nil,
                Some(Value::Text(text)) => Reply::Bulk(text.clone()),
                Some(Value::List(_)) => return Err(wrong_type()),
            },
            (b"SET", [key, text]) => {
                self.values().insert(copied(key), Value::Text(copied(text)));
                Reply::ok()
            }
            (b"SET", [_, _, ..]) => return Err("ERR SET supports no options here".to_owned()),
            (b"INCR", [key]) => self.add(key, 1)?,
            (b"DECR", [key]) => self.add(key, -1)?,
            (b"DEL", keys @ [_, ..]) => {
                let mut values = self.values();
                count(keys, |key| values.remove(key).is_some())
            }
            (b"EXISTS", keys @ [_, ..]) => {
                let values = self.values();
                count(keys, |key| values.contains_key(key))
            }
            (b"LPUSH", [key, texts @ ..]) if !texts.is_empty() => {
                self.push(key, texts, End::Front)?
            }
            (b"RPUSH", [key, texts @ ..]) if !texts.is_empty() => {
                self.push(key, texts, End::Back)?
            }
            (b"LRANGE", [key, first, last]) => self.range(key, first, last)?,
            (b"LLEN", [key]) => match self.values().get(key) {
                None => Reply::Integer(0),
                Some(Value::List(list)) => Reply::Integer(list.len() as i64),
                Some(Value::Text(_)) => return Err(wrong_type()),
            },
            (b"DBSIZE", []) => Reply::Integer(self.values().len() as i64),
            (b"FLUSHALL" | b"FLUSHDB", _) => {
                self.values().clear();
                Reply::ok()
            }
            (b"INFO", _) => Reply::Bulk(self.info().into()),
            (b"CONFIG", [what, ..]) if what.eq_ignore_ascii_case(b"GET") => Reply::Array(vec![]),
            (b"COMMAND", _) => Reply::Array(vec![]),
            (b"CLIENT", _) | (b"QUIT", []) => Reply::ok(),
            (b"SELECT", [database]) if **database == *b"0" => Reply::ok(),
            (b"SELECT", [_]) => return Err("ERR this server has only the database 0".to_owned()),
            (
                b"GET" | b"SET" | b"INCR" | b"DECR" | b"DEL" | b"EXISTS" | b"LPUSH" | b"RPUSH"
                | b"LRANGE" | b"LLEN" | b"PING" | b"ECHO" | b"DBSIZE" | b"SELECT" | b"CONFIG"
                | b"QUIT",
                _,
            ) => {
                let name = name.to_ascii_lowercase().escape_ascii().to_string();
                return Err(format!(
                    "ERR wrong number of arguments for '{name}' command"
                ));
            }
            _ => {
                let name = name[..name.len().min(64)].escape_ascii();
                return Err(format!("ERR unknown command '{name}'"));
            }
        })
    }

    fn add(&self, key: &Bytes, what: i64) -> Result<Reply, String> {
        let mut values = self.values();
        let old = match values.get(key) {
            None => 0,
            Some(Value::Text(text)) => number(text).ok_or("ERR value is not an integer")?,
            Some(Value::List(_)) => return Err(wrong_type()),
        };
        let new = old
            .checked_add(what)
            .ok_or("ERR the value would overflow")?;
        values.insert(copied(key), Value::Text(new.to_string().into()));
        Ok(Reply::Integer(new))
    }

    fn push(&self, key: &Bytes, texts: &[Bytes], end: End) -> Result<Reply, String> {
        let mut values = self.values();
        let empty = || Value::List(VecDeque::new());
        let Value::List(list) = values.entry(copied(key)).or_insert_with(empty) else {
            return Err(wrong_type());
        };
        for text in texts {
            match end {
                End::Front => list.push_front(copied(text)),
                End::Back => list.push_back(copied(text)),
            }
        }
        Ok(Reply::Integer(list.len() as i64))
    }

    fn range(&self, key: &Bytes, first: &[u8], last: &[u8]) -> Result<Reply, String> {
        let bound = |text| number(text).ok_or("ERR value is not an integer");
        let (first, last) = (bound(first)?, bound(last)?);
        let values = self.values();
        let list = match values.get(key) {
            None => return Ok(Reply::Array(vec![])),
            Some(Value::List(list)) => list,
            Some(Value::Text(_)) => return Err(wrong_type()),
        };
        let len = list.len() as i64;
        // A negative index counts from the end of the list.
        let index = |at: i64| if at < 0 { at.saturating_add(len) } else { at };
        let first = index(first).clamp(0, len) as usize;
        let end = index(last).saturating_add(1).clamp(first as i64, len) as usize;
        let texts = list.range(first..end).cloned();
        Ok(Reply::Array(texts.map(Reply::Bulk).collect()))
    }

    fn info(&self) -> String {
        format!(
            "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nprocess_id:{}\r\n\
             # Stats\r\ntotal_commands_processed:{}\r\n# Keyspace\r\ndb0:keys={}\r\n",
            std::process::id(),
            self.requests.load(Ordering::Relaxed),
            self.values().len()
        )
    }
}

/// Copies a received value. A reference to the value would keep the whole receive buffer allocated.
fn copied(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn wrong_type() -> String {
    "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned()
}

fn count(keys: &[Bytes], mut is_counted: impl FnMut(&Bytes) -> bool) -> Reply {
    let counted = keys.iter().filter(|key| is_counted(key)).count();
    Reply::Integer(counted as i64)
}
