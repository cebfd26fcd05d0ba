#pragma once

// Every op, a line each: its name, and the struct of its arguments. From this list come Backend's methods, and in both
// backends the calls of cpu::op and cuda::op, which a header declares beside the struct and the
// contract: kernels/<op>.h, but for ops that belong together (pool.h: group_mean; column_add.h: column_mean;
// expected_attention.h: query_moments; future_scores.h: future_table; find_bad.h: both; attention_columns.h: both;
// <op>_backward: <op>.h).
#define KV_FOR_EACH_OP(OP)                               \
  OP(linear, LinearArgs)                                 \
  OP(linear_backward, LinearBackwardArgs)                \
  OP(rms_norm, RmsNormArgs)                              \
  OP(rms_norm_backward, RmsNormBackwardArgs)             \
  OP(rope, RopeArgs)                                     \
  OP(rope_backward, RopeBackwardArgs)                    \
  OP(silu_mul, SiluMulArgs)                              \
  OP(silu_mul_backward, SiluMulBackwardArgs)             \
  OP(add, AddArgs)                                       \
  OP(embed, EmbedArgs)                                   \
  OP(token_loss, TokenLossArgs)                          \
  OP(sample, SampleArgs)                                 \
  OP(attend, AttendArgs)                                 \
  OP(append, AppendArgs)                                 \
  OP(advance, AdvanceArgs)                               \
  OP(compact, CompactArgs)                               \
  OP(write_gate, WriteGateArgs)                          \
  OP(write_gate_backward, WriteGateBackwardArgs)         \
  OP(expiry, ExpiryArgs)                                 \
  OP(write_expiries, WriteExpiriesArgs)                  \
  OP(unexpired, UnexpiredArgs)                           \
  OP(seen_pairs, SeenPairsArgs)                          \
  OP(page_bounds, PageBoundsArgs)                        \
  OP(select_pages, SelectPagesArgs)                      \
  OP(column_add, ColumnAddArgs)                          \
  OP(column_mean, ColumnMeanArgs)                        \
  OP(write_column, WriteColumnArgs)                      \
  OP(keep_recent, KeepRecentArgs)                        \
  OP(window_attention, WindowAttentionArgs)              \
  OP(pool, PoolArgs)                                     \
  OP(group_mean, GroupMeanArgs)                          \
  OP(redundancy, RedundancyArgs)                         \
  OP(key_difference, KeyDifferenceArgs)                  \
  OP(lag_relative, LagRelativeArgs)                      \
  OP(layer_mean, LayerMeanArgs)                          \
  OP(query_moments, QueryMomentsArgs)                    \
  OP(expected_attention, ExpectedAttentionArgs)          \
  OP(blend, BlendArgs)                                   \
  OP(future_scores, FutureScoresArgs)                    \
  OP(future_table, FutureTableArgs)                      \
  OP(find_bad_score, FindBadScoreArgs)                   \
  OP(find_bad_value, FindBadValueArgs)                   \
  OP(count_at_least, CountAtLeastArgs)                   \
  OP(select_top, SelectTopArgs)                          \
  OP(select_pooled, SelectPooledArgs)                    \
  OP(projected_norms, ProjectedNormsArgs)                \
  OP(value_norms, ValueNormsArgs)                        \
  OP(retention_scores, RetentionScoresArgs)              \
  OP(attention_mass, AttentionMassArgs)                  \
  OP(retained_mass, RetainedMassArgs)                    \
  OP(survival, SurvivalArgs)                             \
  OP(row_cosine, RowCosineArgs)                          \
  OP(row_distance, RowDistanceArgs)                      \
  OP(visibility, VisibilityArgs)                         \
  OP(attention_columns_add, AttentionColumnsAddArgs)     \
  OP(attention_columns_fold, AttentionColumnsFoldArgs)   \
  OP(rate_entries, RateEntriesArgs)                      \
  OP(rate_entries_backward, RateEntriesBackwardArgs)     \
  OP(pairwise_hinge, PairwiseHingeArgs)                  \
  OP(retention_gate, RetentionGateArgs)                  \
  OP(retention_gate_backward, RetentionGateBackwardArgs) \
  OP(occupancy, OccupancyArgs)                           \
  OP(occupancy_backward, OccupancyBackwardArgs)          \
  OP(capacity_hinge, CapacityHingeArgs)                  \
  OP(gate_sparsity, GateSparsityArgs)                    \
  OP(vocabulary_loss, VocabularyLossArgs)                \
  OP(hidden_distance, HiddenDistanceArgs)                \
  OP(draw_order, DrawOrderArgs)                          \
  OP(eviction_surrogate, EvictionSurrogateArgs)          \
  OP(mix_heads, MixHeadsArgs)                            \
  OP(mix_heads_backward, MixHeadsBackwardArgs)           \
  OP(random_normal, RandomNormalArgs)                    \
  OP(random_uniform, RandomUniformArgs)                  \
  OP(biased_attention, BiasedAttentionArgs)              \
  OP(biased_attention_backward, BiasedAttentionBackwardArgs)

namespace kv {

#define KV_DECLARE(op, Args) struct Args;
KV_FOR_EACH_OP(KV_DECLARE)
#undef KV_DECLARE

}  // namespace kv
