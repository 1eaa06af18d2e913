//! Simulates a writer and a reader with random interleavings, and checks that the bytes arrive
//! unchanged.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{receiving::Receiving, sending::Sending, wire::Window};

/// A step of the simulation.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The writer writes up to this number of bytes.
    Write(usize),
    /// The oldest write arrives at the reader.
    Arrive,
    /// The reader reads up to this number of bytes.
    Read(usize),
    /// The reader sends an update, if one is due.
    Update,
    /// The oldest update arrives at the writer.
    HandleUpdate,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1_usize..300).prop_map(Step::Write),
        Just(Step::Arrive),
        (1_usize..300).prop_map(Step::Read),
        Just(Step::Update),
        Just(Step::HandleUpdate),
    ]
}

/// The address of the reader's ring.
const BASE: u64 = 0x7000;

/// The writer, the reader, and the writes and updates in flight between them.
struct Scene {
    sending: Sending,
    receiving: Receiving,
    ring: Vec<u8>,
    /// The writes in flight: address and length in bytes.
    writes: VecDeque<(u64, u32)>,
    /// The updates in flight: the limit, and an optional window with its index in the table.
    updates: VecDeque<(u16, Option<(Window, u32)>)>,
    table: [Option<Window>; 2],
    written: usize,
    read: usize,
}

impl Scene {
    fn new(size: usize, queue: u16) -> Self {
        let receiving = Receiving::new(size, queue);
        let first = Window {
            addr: BASE,
            rkey: 9,
            length: receiving.half() as u32,
        };
        Self {
            sending: Sending::new(receiving.credits(), first),
            ring: vec![0; size],
            receiving,
            writes: [].into(),
            updates: [].into(),
            table: [None; 2],
            written: 0,
            read: 0,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(want) => {
                let Some(window) = self.sending.room(want) else {
                    return;
                };
                self.sending.wrote(window.length);
                self.writes.push_back((window.addr, window.length));
            }
            Step::Arrive => {
                let Some((addr, len)) = self.writes.pop_front() else {
                    return;
                };
                let start = (addr - BASE) as usize;
                // Like a device, write without checking whether the old bytes in the range have
                // been read.
                for byte in &mut self.ring[start..start + len as usize] {
                    *byte = self.written as u8;
                    self.written += 1;
                }
                assert_eq!(self.receiving.arrived(len), Ok(()));
            }
            Step::Read(want) => {
                let range = self.receiving.readable(want);
                let len = range.len();
                for byte in &self.ring[range] {
                    assert_eq!(*byte, self.read as u8, "byte {}", self.read);
                    self.read += 1;
                }
                self.receiving.read(len);
            }
            Step::Update => {
                if let Some(update) = self.receiving.update() {
                    let window = update.window.map(|(range, table_index)| {
                        let window = Window {
                            addr: BASE + range.start as u64,
                            rkey: 9,
                            length: range.len() as u32,
                        };
                        (window, table_index)
                    });
                    self.updates.push_back((update.limit, window));
                }
            }
            Step::HandleUpdate => {
                let Some((limit, window)) = self.updates.pop_front() else {
                    return;
                };
                if let Some((window, table_index)) = window {
                    let old = self.table[table_index as usize].replace(window);
                    assert_eq!(
                        old, None,
                        "an update must not overwrite a window that the writer has not taken"
                    );
                }
                let table = &mut self.table;
                self.sending
                    .allowed(limit, |table_index| table[table_index as usize].take());
            }
        }
    }

    /// Runs all steps except writes, until nothing is in flight or unread.
    fn run_until_idle(&mut self) {
        while !self.writes.is_empty() || !self.receiving.is_empty() || !self.updates.is_empty() {
            for step in [
                Step::Arrive,
                Step::Read(1000),
                Step::Update,
                Step::HandleUpdate,
            ] {
                self.step(step);
            }
        }
        self.step(Step::Update);
        self.step(Step::HandleUpdate);
    }
}

proptest! {
    #[test]
    fn bytes_arrive_in_order_and_the_writer_never_starves(
        size in 2_usize..400,
        queue in 2_u16..12,
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let mut scene = Scene::new(size, queue);
        for step in steps {
            scene.step(step);
        }
        scene.run_until_idle();
        prop_assert_eq!(scene.read, scene.written);
        // After the reader has read all bytes, the writer can write again.
        prop_assert!(scene.sending.room(1).is_some());
    }
}
