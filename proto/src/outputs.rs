use std::{collections::VecDeque, fmt};

use log::Level;

use super::{Note, Output, Topic};

/// The queue of outputs.
///
/// Most inputs lead to a single output, which bypasses the queue.
#[derive(Debug)]
pub(super) struct Outputs {
    /// Comes before `rest`.
    first: Option<Output>,
    rest: VecDeque<Output>,
}

impl Outputs {
    pub(super) fn new() -> Self {
        Self {
            first: None,
            rest: VecDeque::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_empty()
    }

    pub(super) fn push(&mut self, output: Output) {
        if self.is_empty() {
            self.first = Some(output);
        } else {
            self.rest.push_back(output);
        }
    }

    /// Has the driver log this, if the program logs lines of this level.
    pub(super) fn note(&mut self, level: Level, text: fmt::Arguments<'_>) {
        if let Some(note) = Note::new(level, text) {
            self.push(Output::Note(note));
        }
    }

    /// Has the driver log a warning of this topic, if its number allows that.
    pub(super) fn warn(&mut self, topic: Topic, text: fmt::Arguments<'_>) {
        if let Some(note) = Note::new(Level::Warn, text) {
            let topic = Some(topic);
            self.push(Output::Note(Note { topic, ..note }));
        }
    }

    pub(super) fn pop(&mut self) -> Option<Output> {
        self.first.take().or_else(|| self.rest.pop_front())
    }
}
