//! Tests of peers that violate the protocol, as client and as server. A violation ends only the
//! connection of the violating peer: a healthy connection of the same engine continues to exchange
//! messages, no resource leaks, and no queue runs out of posted receives.

mod abrupt;
mod announcements;
mod bystander;
mod frames;
mod hellos;
mod keys;
mod landing;
mod large;
mod noise;
mod pace;
mod peer;
mod scene;
mod sessions;
mod shared;
mod silent;
mod windows;

use toolbox::frames as wire;
