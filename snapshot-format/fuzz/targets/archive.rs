#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rouse_fuzz::archive::run(data));
