/* The ridge workload as one loop: Algorithm 1 with squared loss, linear blocks and the "unbiased" gradient.
   X[n] is [M, D[n]]; ids is [R, Q, B]; owner[n] is [M]; weight[n], share[n] are [K]; hub[n] is [D[n]]; no padding, no
   copies. The minibatches are drawn beforehand. */
#include <string.h>

#define MOST_WIDTH 64
#define MOST_CLIENTS 64
#define MOST_ROWS 1024
#define MOST_SILOS 16

static float dot(const float *a, const float *b, int size) {
    float sum = 0;
    for (int i = 0; i < size; i++) sum += a[i] * b[i];
    return sum;
}

void run(int rounds, int steps, int rows, int silos, int clients, const int *width, const float **features,
         const float *labels, const int *ids, const unsigned char **owner, const float **weight, const float **share,
         float step_size, float **hub) {
    static float block[MOST_SILOS][MOST_CLIENTS][MOST_WIDTH], slope[MOST_CLIENTS][MOST_WIDTH];
    static float phi[MOST_SILOS][MOST_ROWS], total[MOST_ROWS];
    for (int r = 0; r < rounds; r++) {
        for (int n = 0; n < silos; n++)
            for (int k = 0; k < clients; k++) memcpy(block[n][k], hub[n], width[n] * sizeof(float));
        for (int q = 0; q < steps; q++, ids += rows) {
            memset(total, 0, sizeof total);
            for (int n = 0; n < silos; n++)
                for (int p = 0; p < rows; p++)
                    total[p] += phi[n][p] = dot(features[n] + (long)ids[p] * width[n], hub[n], width[n]);
            for (int n = 0; n < silos; n++) {
                memset(slope, 0, sizeof slope);
                for (int p = 0; p < rows; p++) {
                    const float *row = features[n] + (long)ids[p] * width[n];
                    int k = owner[n][ids[p]];
                    float error = dot(row, block[n][k], width[n]) + total[p] - phi[n][p] - labels[ids[p]];
                    for (int d = 0; d < width[n]; d++) slope[k][d] += weight[n][k] * error * row[d];
                }
                for (int k = 0; k < clients; k++)
                    for (int d = 0; d < width[n]; d++) block[n][k][d] -= step_size * slope[k][d];
            }
        }
        for (int n = 0; n < silos; n++) {
            memset(hub[n], 0, width[n] * sizeof(float));
            for (int k = 0; k < clients; k++)
                for (int d = 0; d < width[n]; d++) hub[n][d] += share[n][k] * block[n][k][d];
        }
    }
}
