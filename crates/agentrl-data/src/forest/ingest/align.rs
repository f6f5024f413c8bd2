//! Alignment of the prompt of a turn with the tokens of the turns before it.

use agentrl_compute::prefix::{common_prefix, repeated_end};
use agentrl_compute::ragged::Ragged;

use crate::schema::Drift;

/// Minimum number of tokens that count as a repetition if they end the old context and occur in the new one. Fewer
/// tokens may occur by chance.
const CERTAIN_REPEAT: usize = 8;

/// The alignment of a prompt with the context before it.
///
/// Up to `at` the two are equal. In the prompt, `at..replaced` replaces other tokens of the old context,
/// `replaced..repeated` repeats the end of the old context, and the rest is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alignment {
    pub(super) drift: Drift,
    pub(super) at: usize,
    pub(super) replaced: usize,
    pub(super) repeated: usize,
}

/// Options of an alignment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// Maximum number of tokens at the end of an output that may differ; if more differ, the context counts as
    /// rewritten.
    pub(super) realign: usize,
    /// Text of each token id, if it is known.
    pub(super) vocabulary: Option<Ragged<'a, u8>>,
}

/// Align a prompt with the context before it, in linear time. The last output begins at `output` in `old`. `old` and
/// `prompt` share their first `at` tokens.
pub(super) fn align(old: &[i32], output: usize, prompt: &[i32], at: usize, rules: &Rules<'_>) -> Alignment {
    debug_assert_eq!(at, common_prefix(old, prompt));
    let (lost, rest) = (&old[at..], &prompt[at..]);
    let aligned = |drift, replaced, repeated| Alignment { drift, at, replaced: at + replaced, repeated: at + repeated };
    if lost.is_empty() {
        return aligned(Drift::Clean, 0, 0);
    }
    if rest.is_empty() {
        return aligned(Drift::Truncated, 0, 0);
    }
    if let Some(taken) = rules.vocabulary.and_then(|vocabulary| same_text(lost, rest, vocabulary)) {
        return aligned(Drift::Retokenised, taken, taken);
    }
    if at >= output && lost.len() <= rules.realign {
        let found = repeated_end(lost, &rest[..rest.len().min(lost.len() + rules.realign)]);
        return aligned(Drift::Realigned, found.end - found.length, found.end);
    }
    let found = repeated_end(lost, rest);
    let last_output = old.len() - output;
    let certain = if last_output == 0 { CERTAIN_REPEAT } else { last_output.min(CERTAIN_REPEAT) };
    if found.length < certain {
        return aligned(Drift::Rewritten, rest.len(), rest.len());
    }
    let cut = found.end == found.length && found.length >= last_output;
    let drift = if cut { Drift::Truncated } else { Drift::Rewritten };
    aligned(drift, found.end - found.length, found.end)
}

/// Return the number of tokens of `new` that spell all of `old` (the last one may spell more). `None` if the texts
/// differ, or a token has no text.
fn same_text(old: &[i32], new: &[i32], vocabulary: Ragged<'_, u8>) -> Option<usize> {
    let text = |token: i32| vocabulary.get(usize::try_from(token).ok()?);
    let mut spelled: &[u8] = &[];
    let mut taken = 0;
    for &token in old {
        let mut wanted = text(token)?;
        while !wanted.is_empty() {
            if spelled.is_empty() {
                spelled = text(*new.get(taken)?)?;
                taken += 1;
                continue;
            }
            let length = wanted.len().min(spelled.len());
            if wanted[..length] != spelled[..length] {
                return None;
            }
            (wanted, spelled) = (&wanted[length..], &spelled[length..]);
        }
    }
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: Rules<'static> = Rules { realign: 2, vocabulary: None };

    fn aligned(old: &[i32], output: usize, prompt: &[i32], rules: &Rules<'_>) -> (Drift, [usize; 3]) {
        let found = align(old, output, prompt, common_prefix(old, prompt), rules);
        (found.drift, [found.at, found.replaced, found.repeated])
    }

    #[test]
    fn each_class_by_hand() {
        // Two messages, then an output of four tokens that ends with token 9.
        let old = [1, 2, 3, 4, 5, 6, 7, 9];
        let cases: [(&[i32], Drift, [usize; 3]); 11] = [
            (&[1, 2, 3, 4, 5, 6, 7, 9, 20, 21], Drift::Clean, [8, 8, 8]),
            (&[1, 2, 3, 4, 5, 6, 7, 9], Drift::Clean, [8, 8, 8]),
            // The token that ended the output is gone.
            (&[1, 2, 3, 4, 5, 6, 7, 20, 21], Drift::Realigned, [7, 7, 7]),
            // The token before it differs.
            (&[1, 2, 3, 4, 5, 6, 17, 9, 20], Drift::Realigned, [6, 7, 8]),
            // More tokens of the output differ than the rules allow.
            (&[1, 2, 3, 4, 15, 6, 7, 9, 20], Drift::Rewritten, [4, 9, 9]),
            // A message before the output differs; the output is repeated.
            (&[1, 2, 13, 4, 5, 6, 7, 9, 20], Drift::Rewritten, [2, 3, 8]),
            // A summary replaces almost everything.
            (&[1, 30, 31, 32], Drift::Rewritten, [1, 4, 4]),
            (&[40, 41], Drift::Rewritten, [0, 2, 2]),
            // The second message is dropped, the first is kept.
            (&[1, 2, 5, 6, 7, 9, 20], Drift::Truncated, [2, 2, 6]),
            // The whole beginning is dropped.
            (&[4, 5, 6, 7, 9, 20], Drift::Truncated, [0, 0, 5]),
            // The end is dropped.
            (&[1, 2, 3, 4, 5], Drift::Truncated, [5, 5, 5]),
        ];
        for (prompt, drift, places) in cases {
            assert_eq!(aligned(&old, 4, prompt, &RULES), (drift, places), "{prompt:?}");
        }
    }

    /// An old context, a prompt, the expected drift and the expected places.
    type Case<'a> = (&'a [i32], &'a [i32], Drift, [usize; 3]);

    #[test]
    fn the_vocabulary_shows_the_same_text_in_other_tokens() -> crate::Result<()> {
        // Ids 0 to 5 are "a", "b", "ab", "<end>", "b<end>" and nothing.
        let vocabulary = Ragged::new(b"abab<end>b<end>", &[0, 1, 2, 4, 9, 15, 15])?;
        let rules = Rules { realign: 2, vocabulary: Some(vocabulary) };
        let cases: [Case<'_>; 6] = [
            (&[9, 0, 1, 3], &[9, 2, 3, 1], Drift::Retokenised, [1, 3, 3]),
            (&[9, 2, 3], &[9, 0, 4, 1], Drift::Retokenised, [1, 3, 3]),
            // The last token of the new text is longer than the rest of the old text.
            (&[9, 0, 1], &[9, 0, 4, 0], Drift::Retokenised, [2, 3, 3]),
            // Tokens without text change nothing.
            (&[9, 2, 5], &[9, 0, 5, 1, 0], Drift::Retokenised, [1, 4, 4]),
            (&[9, 0, 1, 1], &[9, 2, 0, 1], Drift::Rewritten, [1, 4, 4]),
            // Id 9 has no text.
            (&[9, 9, 1, 1], &[9, 2, 1, 1], Drift::Rewritten, [1, 4, 4]),
        ];
        for (old, prompt, drift, places) in cases {
            assert_eq!(aligned(old, 1, prompt, &rules), (drift, places), "{old:?} {prompt:?}");
        }
        Ok(())
    }

    proptest! {
        /// For any prompt, the parts are in order and have the properties that [`Alignment`] documents.
        #[test]
        fn parts_are_as_reported(
            old in prop::collection::vec(0..3, 1..14),
            prompt in prop::collection::vec(0..3, 1..14),
            output in any::<prop::sample::Index>(),
            realign in 0_usize..4,
        ) {
            let output = output.index(old.len() + 1);
            let rules = Rules { realign, vocabulary: None };
            let (drift, [at, replaced, repeated]) = aligned(&old, output, &prompt, &rules);
            prop_assert!(at <= replaced && replaced <= repeated && repeated <= prompt.len());
            prop_assert_eq!(&old[..at], &prompt[..at]);
            prop_assert!(old.ends_with(&prompt[replaced..repeated]) || replaced == repeated);
            let kept = repeated - replaced;
            let lost = old.len() - at - kept;
            match drift {
                Drift::Clean => prop_assert_eq!([at, replaced, repeated], [old.len(); 3]),
                Drift::Truncated => {
                    prop_assert!(lost > 0 && replaced == at);
                    prop_assert!(at == prompt.len() || kept >= old.len() - output);
                }
                Drift::Realigned => prop_assert!(at >= output && lost <= realign && repeated - at <= old.len() - at + realign),
                Drift::Rewritten => prop_assert!(at < output || old.len() - at > realign),
                Drift::Retokenised => prop_assert!(false, "nothing is known of texts"),
            }
        }
    }
}
