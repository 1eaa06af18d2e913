//! librdmacm and libibverbs, opened when they are first needed: a build does not need them, and a
//! program starts on machines without them.
//!
//! It has the names of `linked` that this crate uses. The declarations follow the ABI: the macros
//! of `define` make a test of each, which compares it with the generated bindings if there are any.
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
