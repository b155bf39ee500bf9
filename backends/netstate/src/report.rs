//! What the kernel has, for reports: all objects of any program, compared with the desired ones.

pub mod inspect;
pub mod protocols;
pub mod sighting;
pub mod survey;
pub mod text;
