//! Traffic rules equal Go flannel's to the letter, work on packets, and follow a change of mode without a gap. The daemon repairs them when
//! somebody changes them, writes nothing otherwise, and reports once what prevents them.

mod content;
mod guard;
mod matrix;
mod node;
mod obstacles;
mod repair;
mod restart;
mod switch;
