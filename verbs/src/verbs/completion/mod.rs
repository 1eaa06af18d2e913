//! Completion queues, the channels that signal them, and work completions.
//!
//! Uses `device`.

mod completion_channel;
mod completion_queue;
mod extended_completion;
mod work_completion;

pub use completion_channel::CompletionChannel;
pub use completion_queue::CompletionQueue;
pub use extended_completion::ExtendedCompletion;
pub use work_completion::{Success, WcError, WcFlags, WcOpcode, WorkCompletion};
