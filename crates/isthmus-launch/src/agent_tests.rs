//! Whole jobs in memory: agents, and the letters between them.
