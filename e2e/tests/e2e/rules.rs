//! Traffic rules: they are Go flannel's to the letter, work on packets, follow a change of mode without a gap, are repaired when somebody
//! changes them and left alone otherwise, and what prevents them is reported once.

mod content;
mod guard;
mod matrix;
mod node;
mod obstacles;
mod repair;
mod restart;
mod switch;
