//! Clusters of nearly equal texts.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::hash_table::Keys;
use super::hashed::{dense_bytes_of, pair};
use super::hasher::{FixedHasher, mix};
use crate::argument_checks::{room, same_length};
use crate::group::group_count;
use crate::{Error, Result};

type HashedMap<K, V> = HashMap<K, V, BuildHasherDefault<FixedHasher>>;

/// Similarity measure of two texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Similarity {
    /// [`sequence_ratio`]: exact, and quadratic in the length of texts. Each text is compared with every cluster of its
    /// group.
    Sequence,
    /// The share of common word shingles, estimated from sketches: for many or long texts. A text is compared with the
    /// clusters that share a band with it: many, if the similarity of most texts is just below the threshold.
    Jaccard(Sketch),
}

/// Parameters of the sketch of a text (`MinHash`): the smallest hash of its shingles under each of several hash
/// functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sketch {
    /// Number of words of a shingle.
    pub words: usize,
    /// Number of hash functions: the standard error of the estimate is at most `0.5 / sqrt(hashes)`.
    pub hashes: usize,
    /// Number of bands of `hashes / bands` hashes: only texts with a common band are compared.
    pub bands: usize,
}

impl Default for Sketch {
    /// Return a sketch with standard error 0.044. Texts that share half their shingles are compared in 87 of 100 cases;
    /// texts that share 0.7 of them in all but 1 of 6 500.
    fn default() -> Self {
        Self { words: 3, hashes: 128, bands: 32 }
    }
}

/// Return the cluster ids of texts. Each text joins the first cluster of its group whose first text is at least
/// `threshold` similar; otherwise it starts a new cluster.
///
/// Clusters are tried in order of appearance, so the result depends on the order of rows.
///
/// ```
/// use agentrl_compute::keys::{Similarity, similar};
///
/// let texts = ["you are in the hall", "you are in a hall", "a locked door"];
/// assert_eq!(similar(&texts, &[0; 3], 0.8, Similarity::Sequence)?.ids, [0, 0, 1]);
/// # Ok::<(), agentrl_compute::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` if lengths differ, group ids are not dense, `threshold` is outside [0, 1] or a sketch is impossible.
pub fn similar(texts: &[&str], groups: &[u32], threshold: f64, similarity: Similarity) -> Result<Keys> {
    same_length("groups", groups.len(), "texts", texts.len())?;
    crate::argument_checks::within("threshold", threshold, 0.0, 1.0)?;
    let count = group_count("groups", groups)?;
    // Equal texts of a group join the same cluster, so only one of them is compared.
    let different = pair(groups, &dense_bytes_of(texts.len(), |row| texts[row].as_bytes())?.ids)?;
    let mut rows = Vec::with_capacity(different.count as usize);
    for (row, &id) in different.ids.iter().enumerate() {
        if id as usize == rows.len() {
            rows.push(row);
        }
    }
    let groups: Vec<u32> = rows.iter().map(|&row| groups[row]).collect();
    let texts: Vec<&str> = rows.iter().map(|&row| texts[row]).collect();
    let mut made = clusters_of(&texts, &groups, count, threshold, similarity)?;
    made.ids = different.ids.iter().map(|&id| made.ids[id as usize]).collect();
    Ok(made)
}

/// Do the same for texts that differ within each group.
fn clusters_of(texts: &[&str], groups: &[u32], count: usize, threshold: f64, similarity: Similarity) -> Result<Keys> {
    match similarity {
        Similarity::Sequence => {
            let texts: Vec<Vec<char>> = texts.iter().map(|text| text.chars().collect()).collect();
            let mut clusters: Vec<Vec<(u32, Pattern<'_>)>> = (0..count).map(|_| Vec::new()).collect();
            Ok(greedy(texts.len(), |row, next| {
                let clusters = &mut clusters[groups[row] as usize];
                let joined = clusters.iter().find(|(_, pattern)| pattern.reaches(&texts[row], threshold));
                if let Some(&(id, _)) = joined {
                    return id;
                }
                clusters.push((next, Pattern::new(&texts[row])));
                next
            }))
        }
        Similarity::Jaccard(sketch) => {
            let Sketch { words, hashes, bands } = sketch;
            if words == 0 || bands == 0 || hashes < bands || hashes % bands > 0 {
                return Err(Error::invalid(format!(
                    "words is {words}, hashes {hashes} and bands {bands}; give numbers of at least 1, and hashes a multiple of \
                     bands"
                )));
            }
            room("hashes", hashes, size_of::<u64>() * (texts.len() + 1))?;
            let sketches = crate::thread_pool::map(texts.to_vec(), |text| Ok(minima(text, words, hashes)))?;
            let mut buckets: HashedMap<u64, Vec<u32>> = HashedMap::default();
            let mut first_rows = Vec::new();
            Ok(greedy(texts.len(), |row, next| {
                let mine = &sketches[row];
                let band_keys: Vec<u64> = mine
                    .chunks(hashes / bands)
                    .zip(0..)
                    .map(|(band, place)| {
                        band.iter().fold(mix(u64::from(groups[row]), place), |key, &hash| mix(key, hash))
                    })
                    .collect();
                let mut candidates: Vec<u32> =
                    band_keys.iter().filter_map(|key| buckets.get(key)).flatten().copied().collect();
                candidates.sort_unstable();
                candidates.dedup();
                let close = |&id: &u32| {
                    let first: usize = first_rows[id as usize];
                    let equal = mine.iter().zip(&sketches[first]).filter(|(a, b)| a == b).count();
                    groups[first] == groups[row] && equal as f64 >= threshold * hashes as f64
                };
                candidates.into_iter().find(close).unwrap_or_else(|| {
                    first_rows.push(row);
                    for key in band_keys {
                        buckets.entry(key).or_default().push(next);
                    }
                    next
                })
            }))
        }
    }
}

/// Assign ids row by row: `join` gets a row and the next free id, and returns an id up to that one.
fn greedy(rows: usize, mut join: impl FnMut(usize, u32) -> u32) -> Keys {
    let mut count = 0;
    let ids = (0..rows).map(|row| {
        let id = join(row, count);
        count = count.max(id + 1);
        id
    });
    let ids = ids.collect();
    Keys { ids, count }
}

/// Return the smallest hash of a text's shingles under each hash function. A text with fewer words is one shingle.
fn minima(text: &str, words: usize, hashes: usize) -> Vec<u64> {
    let words_of: Vec<u64> = text.split_whitespace().map(|word| xxh3_64_with_seed(word.as_bytes(), 0)).collect();
    let shingles: Vec<u64> = if words_of.len() < words {
        vec![words_of.iter().fold(words as u64, |key, &word| mix(key, word))]
    } else {
        words_of.windows(words).map(|part| part.iter().fold(words as u64, |key, &word| mix(key, word))).collect()
    };
    let smallest = |seed: u64| shingles.iter().map(|&shingle| mix(mix(seed, 1), shingle)).min().unwrap_or(u64::MAX);
    (0..hashes as u64).map(smallest).collect()
}

/// Return the similarity of two texts, from 0 to 1: twice the characters in matching blocks over all characters.
///
/// The blocks are those of Ratcliff and Obershelp: the longest common substring, then the longest on either side of it,
/// and so on. The result is that of Python's `difflib.SequenceMatcher(None, first, second).ratio()`, which `GiGPO`'s
/// public code uses. That includes the rule for second texts of 200 characters or more: a character that makes up over
/// 1 % of the text seeds no block.
///
/// ```
/// use agentrl_compute::keys::sequence_ratio;
///
/// assert_eq!(sequence_ratio("abcd", "bcde"), 0.75);
/// ```
pub fn sequence_ratio(first: &str, second: &str) -> f64 {
    let (first, second): (Vec<char>, Vec<char>) = (first.chars().collect(), second.chars().collect());
    Pattern::new(&second).ratio(&first)
}

/// The second text, indexed once.
#[derive(Debug)]
struct Pattern<'a> {
    text: &'a [char],
    kinds: Kinds,
    /// Number of occurrences of each kind of letter.
    counts: Vec<usize>,
    /// Indices of each kind's occurrences, kind after kind, and the end of each kind. A kind that seeds no block has
    /// none.
    places: Vec<usize>,
    ends: Vec<usize>,
}

impl<'a> Pattern<'a> {
    fn new(text: &'a [char]) -> Self {
        let (mut kinds, mut counts) = (Kinds::default(), Vec::new());
        for &letter in text {
            let kind = kinds.number(letter, counts.len());
            counts.resize(counts.len().max(kind + 1), 0);
            counts[kind] += 1;
        }
        let seeds = |count: usize| text.len() < 200 || count <= text.len() / 100 + 1;
        let mut end = 0;
        let starts = counts.iter().map(|&count| {
            let start = end;
            end += if seeds(count) { count } else { 0 };
            start
        });
        // The start of each kind, until its indices are filled in; then the end.
        let mut ends: Vec<usize> = starts.collect();
        let mut places = vec![0; end];
        for (place, &letter) in text.iter().enumerate() {
            let kind = kinds.of(letter).filter(|&kind| seeds(counts[kind]));
            if let Some(kind) = kind {
                places[ends[kind]] = place;
                ends[kind] += 1;
            }
        }
        Self { text, kinds, counts, places, ends }
    }

    /// Return the ascending indices of a letter that may seed a block.
    fn places(&self, letter: char) -> &[usize] {
        let Some(kind) = self.kinds.of(letter) else { return &[] };
        let start = if kind == 0 { 0 } else { self.ends[kind - 1] };
        &self.places[start..self.ends[kind]]
    }

    /// Return whether the ratio is at least a threshold, mostly without searching for blocks.
    fn reaches(&self, first: &[char], threshold: f64) -> bool {
        let total = first.len() + self.text.len();
        let bound = |matches: usize| if total == 0 { 1.0 } else { 2.0 * matches as f64 / total as f64 };
        if first == self.text {
            return true;
        }
        if bound(first.len().min(self.text.len())) < threshold {
            return false;
        }
        let mut left = self.counts.clone();
        let shared = first.iter().filter(|&&letter| {
            let left = self.kinds.of(letter).map(|kind| &mut left[kind]).filter(|left| **left > 0);
            left.map(|left| *left -= 1).is_some()
        });
        bound(shared.count()) >= threshold && self.ratio(first) >= threshold
    }

    fn ratio(&self, first: &[char]) -> f64 {
        let total = first.len() + self.text.len();
        if total == 0 {
            return 1.0;
        }
        let mut matches = 0;
        let mut open = VecDeque::from([(0..first.len(), 0..self.text.len())]);
        let mut scratch = Scratch::default();
        while let Some((a, b)) = open.pop_front() {
            let (start, other, size) = self.longest(first, &a, &b, &mut scratch);
            if size > 0 {
                matches += size;
                open.push_back((a.start..start, b.start..other));
                open.push_back((start + size..a.end, other + size..b.end));
            }
        }
        2.0 * matches as f64 / total as f64
    }

    /// Return the starts and the length of the longest block within two ranges. On ties, the first one in the first
    /// text.
    fn longest(
        &self,
        first: &[char],
        a: &std::ops::Range<usize>,
        b: &std::ops::Range<usize>,
        scratch: &mut Scratch,
    ) -> (usize, usize, usize) {
        let (mut start, mut other, mut size) = (a.start, b.start, 0);
        scratch.reset(self.text.len() + 1);
        for place in a.clone() {
            let places = self.places(first[place]);
            for &match_place in &places[places.partition_point(|&match_place| match_place < b.start)..] {
                if match_place >= b.end {
                    break;
                }
                let length = scratch.extend(match_place);
                if length > size {
                    (start, other, size) = (place + 1 - length, match_place + 1 - length, length);
                }
            }
            scratch.advance();
        }
        // Letters that seed no block may still extend one.
        while start > a.start && other > b.start && first[start - 1] == self.text[other - 1] {
            (start, other, size) = (start - 1, other - 1, size + 1);
        }
        while start + size < a.end && other + size < b.end && first[start + size] == self.text[other + size] {
            size += 1;
        }
        (start, other, size)
    }
}

/// Consecutive numbers of the kinds of letters: most letters are found without hashing.
#[derive(Debug)]
struct Kinds {
    ascii: [u32; 128],
    others: HashedMap<u32, usize>,
}

impl Default for Kinds {
    fn default() -> Self {
        Self { ascii: [u32::MAX; 128], others: HashedMap::default() }
    }
}

impl Kinds {
    /// Return the number of a letter's kind; `None` if the letter is unknown.
    fn of(&self, letter: char) -> Option<usize> {
        match self.ascii.get(letter as usize) {
            Some(&kind) => (kind < u32::MAX).then_some(kind as usize),
            None => self.others.get(&u32::from(letter)).copied(),
        }
    }

    /// Return the number of a letter's kind; a new letter gets the number `next`.
    fn number(&mut self, letter: char, next: usize) -> usize {
        match self.ascii.get_mut(letter as usize) {
            Some(kind) => {
                *kind = (*kind).min(next as u32);
                *kind as usize
            }
            None => *self.others.entry(u32::from(letter)).or_insert(next),
        }
    }
}

/// Lengths of the common suffixes that end at the letter before and at the current letter.
#[derive(Debug, Default)]
struct Scratch {
    before: Vec<usize>,
    now: Vec<usize>,
    written_before: Vec<usize>,
    written: Vec<usize>,
}

impl Scratch {
    fn reset(&mut self, length: usize) {
        self.advance();
        self.advance();
        self.before.resize(length, 0);
        self.now.resize(length, 0);
    }

    fn extend(&mut self, place: usize) -> usize {
        let length = self.before[place] + 1;
        self.now[place + 1] = length;
        self.written.push(place + 1);
        length
    }

    fn advance(&mut self) {
        for place in self.written_before.drain(..) {
            self.before[place] = 0;
        }
        std::mem::swap(&mut self.before, &mut self.now);
        std::mem::swap(&mut self.written_before, &mut self.written);
    }
}

#[cfg(test)]
#[expect(clippy::unreadable_literal, reason = "ratios as Python prints them")]
mod tests {
    use super::*;

    /// Expected values come from Python's difflib.
    #[test]
    fn as_difflib() {
        let long = "the quick brown fox jumps over the lazy dog ".repeat(6);
        let other = long.replace("quick", "slow").replace("lazy", "tired");
        for (first, second, expected) in [
            ("", "", 1.0),
            ("a", "", 0.0),
            ("abcd", "bcde", 0.75),
            ("private Thread currentThread;", "private volatile Thread currentThread;", 0.8656716417910447),
            ("qabxcd", "abycdf", 0.6666666666666666),
            ("äöü äöü", "äöu äöü", 0.8571428571428571),
            (&long, &other, 0.015151515151515152),
            (&other, &long, 0.015151515151515152),
        ] {
            assert!((sequence_ratio(first, second) - expected).abs() < 1e-15, "{first} {second}");
        }
    }

    #[test]
    fn the_first_cluster_that_is_near_enough() -> Result<()> {
        let texts = ["abcd", "abcx", "abxx", "abcd", "zzzz"];
        assert_eq!(similar(&texts, &[0; 5], 0.75, Similarity::Sequence)?.ids, [0, 0, 1, 0, 2]);
        assert_eq!(similar(&texts, &[0, 0, 0, 1, 1], 0.75, Similarity::Sequence)?.ids, [0, 0, 1, 2, 3]);
        assert_eq!(similar(&texts, &[0; 5], 0.0, Similarity::Sequence)?.count, 1);
        assert_eq!(similar(&texts, &[0; 5], 1.0, Similarity::Sequence)?.ids, [0, 1, 2, 0, 3]);
        assert!(similar(&texts, &[0; 5], 1.5, Similarity::Sequence).is_err());
        Ok(())
    }

    #[test]
    fn sketches_find_texts_that_share_most_words() -> Result<()> {
        let page = |topic: &str, edit: usize| -> String {
            (0..200)
                .map(|word| if word == edit { "changed ".to_owned() } else { format!("{topic}{} ", word % 97) })
                .collect()
        };
        let texts: Vec<String> = (0..30).map(|row| page(["hall", "door", "lamp"][row % 3], row)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let sketch = Similarity::Jaccard(Sketch::default());
        let found = similar(&texts, &[0; 30], 0.8, sketch)?;
        assert!(found.count == 3 && found.ids.iter().enumerate().all(|(row, &id)| id as usize == row % 3));
        let groups: Vec<u32> = (0..30).map(|row| row / 15).collect();
        assert_eq!(similar(&texts, &groups, 0.8, sketch)?.count, 6);
        assert_eq!(similar(&["", "two words", "two words"], &[0; 3], 1.0, sketch)?.ids, [0, 1, 1]);
        let impossible = Similarity::Jaccard(Sketch { bands: 3, ..Sketch::default() });
        assert!(similar(&texts, &groups, 0.8, impossible).is_err());
        Ok(())
    }
}
