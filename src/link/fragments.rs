//! Messages that are sent in fragments: each frame carries a part of the message.

use std::io::IoSlice;

use crate::{
    proto::{Connection, SendRefused},
    transport::{PostError, WorkQueues},
};

/// Posts a message of `len` bytes in fragments. The completion of the last one is `reported`.
#[inline(never)]
pub(super) fn post(
    conn: &mut Connection,
    queues: &mut WorkQueues,
    parts: &[IoSlice<'_>],
    len: usize,
    reported: bool,
) -> Result<Result<(), PostError>, SendRefused> {
    conn.may_send(len)?;
    let mut sends = Vec::new();
    let mut offset = 0;
    while offset < len {
        // A message in fragments is no longer than a few frames.
        let (transmit, here) = conn.send_fragment(len as u32, offset as u32)?;
        let end = offset + here as usize;
        sends.push((transmit, range_of(parts, offset, end)));
        offset = end;
    }
    Ok(queues.post_sends(&sends, reported))
}

/// Returns the bytes from `start` to `end` of these parts.
fn range_of<'a>(parts: &'a [IoSlice<'_>], start: usize, end: usize) -> Vec<IoSlice<'a>> {
    let mut at = 0;
    let mut range = Vec::with_capacity(1);
    for part in parts {
        let here = at..at + part.len();
        at = here.end;
        let (from, to) = (start.max(here.start), end.min(here.end));
        if from < to {
            range.push(IoSlice::new(&part[from - here.start..to - here.start]));
        }
    }
    range
}
