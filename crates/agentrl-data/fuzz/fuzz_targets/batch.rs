//! Fuzz target: a pickled batch, whose parts have the given lengths.
#![no_main]

use agentrl_data::batch::{Batch, Level, PackLayout, PlanOptions};
use arrow_buffer::Buffer;
use libfuzzer_sys::fuzz_target;

// The Arrow crates panic on bytes that are not an Arrow file, and the reader turns the panic into an error. So only an
// uncaught panic is a failure: libFuzzer then ends the process.
fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |data: &[u8]| {
    // Each part comes after its length, which has three bytes.
    let (mut parts, mut rest) = (Vec::new(), data);
    while let [a, b, c, tail @ ..] = rest {
        let length = usize::from(*a) | usize::from(*b) << 8 | usize::from(*c) << 16;
        let (part, tail) = tail.split_at(length.min(tail.len()));
        parts.push(Buffer::from(part));
        rest = tail;
    }
    let Ok(batch) = Batch::from_bytes(&parts) else { return };
    for level in [Level::Draw, Level::Step, Level::Token, Level::NodeToken] {
        _ = batch.column("token", level);
        _ = batch.computed_table(level);
    }
    let draws: Vec<i64> = (0..batch.num_draws() as i64).collect();
    for layout in [PackLayout::Sequence, PackLayout::Tree] {
        let options = PlanOptions { draws: &draws, max_tokens: 64, layout, ..PlanOptions::default() };
        _ = batch.plan(&options).and_then(|plan| plan.packs());
    }
});
