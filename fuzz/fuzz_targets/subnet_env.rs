//! A subnet.env that another program wrote: the parser does not panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = run_dir::subnet_env::parse(data);
});
