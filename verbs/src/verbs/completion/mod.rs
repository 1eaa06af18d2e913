//! Completion queues, the channels on which they raise events, and work completions.
//!
//! This module uses the module `device`.

mod completion_channel;
mod completion_queue;
mod extended_completion;
mod work_completion;

pub use completion_channel::CompletionChannel;
pub use completion_queue::CompletionQueue;
pub use extended_completion::ExtendedCompletion;
pub use work_completion::{Success, WcError, WcFlags, WcOpcode, WorkCompletion};
