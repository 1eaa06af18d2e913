//! Messages that are sent in fragments. Each fragment is one frame.

use std::io::IoSlice;

use crate::{
    proto::{Connection, SendRefused},
    transport::{PostError, WorkQueues},
};

/// Posts a message of `len` bytes in `count` fragments. If `reported` is true, the completion of
/// the last fragment is reported to the application.
#[inline(never)]
pub(super) fn post(
    conn: &mut Connection,
    queues: &mut WorkQueues,
    parts: &[IoSlice<'_>],
    len: usize,
    count: u32,
    reported: bool,
) -> Result<Result<(), PostError>, SendRefused> {
    conn.may_send(len)?;
    let mut sends = Vec::with_capacity(count as usize);
    let mut offset = 0;
    while offset < len {
        // The casts are lossless, because a message in fragments is at most a few frames long.
        let (transmit, here) = conn.send_fragment(len as u32, offset as u32)?;
        let end = offset + here as usize;
        sends.push((transmit, range_of(parts, offset, end)));
        offset = end;
    }
    Ok(queues.post_sends(&sends, reported))
}

/// Returns the bytes of `parts` from offset `start` to offset `end`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_of_parts_has_its_bytes() {
        let bytes: Vec<u8> = (0..10).collect();
        let parts = [&bytes[..3], &[], &bytes[3..4], &bytes[4..]].map(IoSlice::new);
        for start in 0..=bytes.len() {
            for end in start..=bytes.len() {
                let range = range_of(&parts, start, end);
                let range: Vec<u8> = range.iter().flat_map(|part| part.to_vec()).collect();
                assert_eq!(range, &bytes[start..end]);
            }
        }
    }
}
