//! A subnet.env that somebody else wrote: whatever it holds, reading it does no harm.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = run_dir::subnet_env::parse(data);
});
