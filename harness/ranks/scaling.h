#pragma once

#include <cstdint>
#include <vector>

namespace kv {

// What a rank takes as a whole, and nobody else.
struct Piece {
  int model = 0;  // that it needs open
  double seconds = 0;
};

// What ranks do beside pieces, in seconds.
struct Overheads {
  double start = 0;     // each, before its first piece: the first piece's model is then open
  double open = 0;      // each, whenever a piece needs another model
  double assembly = 0;  // the first rank alone, after all
};

// How a run would go that is divided over ranks, and what its rank-seconds go to beside work.
struct ScalingEstimate {
  int ranks = 0;
  double seconds = 0;  // from the start to the end of the assembly
  double work = 0;     // rank-seconds, as are the following
  double start = 0;
  double open = 0;
  double waiting = 0;   // of ranks that find no piece, for the last one that has
  double assembly = 0;  // of the first rank and of all that wait for it

  double all() const { return ranks * seconds; }
  // Rank-seconds in which ranks have nothing to do, for the last piece or for the rows.
  double idle() const { return waiting + (ranks > 0 ? assembly * (ranks - 1) / ranks : 0); }
};

// As Experiment has it: a rank that is free takes the next piece, in that order. The counter that they take it from is
// thought to answer at once.
ScalingEstimate estimate_scaling(const std::vector<Piece>& pieces, const Overheads& overheads, int ranks);

}  // namespace kv
