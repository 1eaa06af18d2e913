//! librdmacm and libibverbs, opened when they are first needed: nothing of them is needed to build,
//! and a program starts where they are not installed.
//!
//! It names what `linked` names, as far as this crate uses it. The declarations are the ABI's: the
//! macros of `define` make of each a test that the headers say the same, wherever there are
//! bindings that were generated from them.
#![allow(
    unsafe_code,
    non_camel_case_types,
    non_snake_case,
    reason = "the functions and names of C"
)]
#![cfg_attr(
    feature = "linked",
    allow(
        dead_code,
        unused_imports,
        reason = "compared with the headers, and not used"
    )
)]

mod attributes;
mod constants;
mod define;
mod functions;
mod inline;
mod objects;
mod rdma_cm;
mod work;

pub(crate) use self::{
    attributes::*, constants::*, functions::*, inline::*, objects::*, rdma_cm::*, work::*,
};
