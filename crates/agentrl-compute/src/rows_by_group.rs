//! Rows of each group in CSR layout, for functions that need a group's values together, such as sorting.

use std::ops::Range;

use crate::thread_pool;

/// Rows by group, in row order within each group.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    rows: Vec<u32>,
    offsets: Vec<u32>,
}

impl Members {
    /// Collect the rows of `count` groups. Rows whose group is not below `count` are skipped.
    pub(crate) fn new(groups: impl Iterator<Item = u32> + Clone, count: usize) -> Self {
        let mut offsets = vec![0_u32; count + 1];
        for group in groups.clone().filter(|&group| (group as usize) < count) {
            offsets[group as usize + 1] += 1;
        }
        for group in 0..count {
            offsets[group + 1] += offsets[group];
        }
        let mut free = offsets.clone();
        let mut rows = vec![0_u32; offsets[count] as usize];
        for (row, group) in (0_u32..).zip(groups).filter(|&(_, group)| (group as usize) < count) {
            rows[free[group as usize] as usize] = row;
            free[group as usize] += 1;
        }
        Self { rows, offsets }
    }

    /// Collect the valid rows of each group.
    pub(crate) fn of(groups: &[u32], count: usize, valid: Option<&[bool]>) -> Self {
        let counted = groups.iter().enumerate();
        Self::new(
            counted.map(|(row, &group)| if valid.is_none_or(|valid| valid[row]) { group } else { u32::MAX }),
            count,
        )
    }

    /// Return the rows of a group.
    pub(crate) fn rows(&self, group: usize) -> &[u32] {
        &self.rows[self.offsets[group] as usize..self.offsets[group + 1] as usize]
    }

    /// Return pieces of neighbouring groups; one thread processes a piece.
    pub(crate) fn pieces(&self) -> Vec<Range<usize>> {
        thread_pool::row_pieces(self.offsets.len() - 1, |group| self.offsets[group] as usize)
    }

    /// Iterate over the groups; return the rows of each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.offsets.windows(2).map(|pair| &self.rows[pair[0] as usize..pair[1] as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::testing::{Group, masked_groups};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_by_searching((group, valid) in masked_groups()) {
            let Group { groups, count, .. } = group;
            let members = Members::of(&groups, count, Some(&valid));
            prop_assert_eq!(members.iter().count(), count);
            for (id, found) in members.iter().enumerate() {
                let rows = (0..groups.len()).filter(|&row| groups[row] as usize == id && valid[row]);
                let expected: Vec<u32> = rows.map(|row| row as u32).collect();
                prop_assert_eq!(found, &expected);
                prop_assert_eq!(members.rows(id), &expected);
            }
        }
    }
}
