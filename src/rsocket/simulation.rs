//! One side writes and the other reads, in every order in which it can happen: each byte must come out as it went in.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{receiving::Receiving, sending::Sending, wire::Window};

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The writer writes up to so many bytes.
    Write(usize),
    /// The oldest write arrives at the reader.
    Arrive,
    /// The reader reads up to so many bytes.
    Read(usize),
    /// The reader tells the writer what is new.
    Tell,
    /// The oldest news arrive at the writer.
    Hear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1_usize..300).prop_map(Step::Write),
        Just(Step::Arrive),
        (1_usize..300).prop_map(Step::Read),
        Just(Step::Tell),
        Just(Step::Hear),
    ]
}

/// Where the reader's ring is, as the writer knows it.
const BASE: u64 = 0x7000;

/// Both sides, and what is on its way between them.
struct Scene {
    sending: Sending,
    receiving: Receiving,
    ring: Vec<u8>,
    /// Writes on their way: where, and how many bytes.
    writes: VecDeque<(u64, u32)>,
    /// News on their way: the limit, and a window with its place.
    news: VecDeque<(u16, Option<(Window, u32)>)>,
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
            news: [].into(),
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
                // The device writes where it was told; what is unread there would be lost.
                for place in &mut self.ring[start..start + len as usize] {
                    *place = self.written as u8;
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
            Step::Tell => {
                if let Some(update) = self.receiving.update() {
                    let window = update.window.map(|(range, place)| {
                        let window = Window {
                            addr: BASE + range.start as u64,
                            rkey: 9,
                            length: range.len() as u32,
                        };
                        (window, place)
                    });
                    self.news.push_back((update.limit, window));
                }
            }
            Step::Hear => {
                let Some((limit, window)) = self.news.pop_front() else {
                    return;
                };
                if let Some((window, place)) = window {
                    let old = self.table[place as usize].replace(window);
                    assert_eq!(old, None, "a window that nobody has taken is overwritten");
                }
                let table = &mut self.table;
                self.sending
                    .allowed(limit, |place| table[place as usize].take());
            }
        }
    }

    /// Everything that can happen without another write.
    fn settle(&mut self) {
        while !self.writes.is_empty() || !self.receiving.is_empty() || !self.news.is_empty() {
            for step in [Step::Arrive, Step::Read(1000), Step::Tell, Step::Hear] {
                self.step(step);
            }
        }
        self.step(Step::Tell);
        self.step(Step::Hear);
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
        scene.settle();
        prop_assert_eq!(scene.read, scene.written);
        // When all is read there is room for more.
        prop_assert!(scene.sending.room(1).is_some());
    }
}
