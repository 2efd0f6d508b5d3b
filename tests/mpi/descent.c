// A program with a collective in its loop: data-parallel gradient descent, as training does it.
//
//   descent PARAMETERS STEPS
//
// Each rank has samples of its own, of a linear function with PARAMETERS weights. In each step it computes the gradient of
// its squared error, all ranks add their gradients by MPI_Allreduce, and move the weights. In the end all ranks must have
// the same weights, near those of the function. Prints the seconds of a step.
#include "check.h"

enum { SAMPLES = 4, WIDTH = 8 }; // of each rank; weights that a sample touches, next to each other

struct sample {
    int first;
    double inputs[WIDTH], output;
};

static double uniform(uint64_t seed, uint64_t at) { return (double)(mixed(seed, at) >> 11) / (double)(UINT64_C(1) << 53); }

static double weight_of(int at) { return uniform(1, (uint64_t)at) - 0.5; }

// Samples of a rank cover its share of the weights, each SAMPLES times.
static struct sample *make_samples(int parameters, int *count)
{
    int groups = parameters / WIDTH / world_size;
    struct sample *samples = allocate((size_t)groups * SAMPLES * WIDTH * sizeof *samples);
    *count = groups * SAMPLES * WIDTH;
    for (int i = 0; i < *count; i++) {
        struct sample *one = &samples[i];
        one->first = (world_rank * groups + i % groups) * WIDTH;
        one->output = 0;
        for (int j = 0; j < WIDTH; j++) {
            one->inputs[j] = uniform((uint64_t)(one->first + 2), (uint64_t)(i * WIDTH + j)) - 0.5;
            one->output += one->inputs[j] * weight_of(one->first + j);
        }
    }
    return samples;
}

static double add_gradient(const struct sample *samples, int count, const double *weights, double *gradient)
{
    double loss = 0;
    for (int i = 0; i < count; i++) {
        double error = -samples[i].output;
        for (int j = 0; j < WIDTH; j++)
            error += samples[i].inputs[j] * weights[samples[i].first + j];
        for (int j = 0; j < WIDTH; j++)
            gradient[samples[i].first + j] += error * samples[i].inputs[j];
        loss += error * error;
    }
    return loss;
}

int main(int argc, char **argv)
{
    start(&argc, &argv, "descent");
    int parameters = (int)argument(argc, argv, 1, 0), steps = (int)argument(argc, argv, 2, 0), count;
    CHECK(steps > 1, "STEPS must be 2 or more");
    CHECK(parameters > 0 && parameters % (WIDTH * world_size) == 0, "PARAMETERS must be a multiple of %d", WIDTH * world_size);
    double *weights = allocate((size_t)parameters * sizeof *weights), *gradient = allocate((size_t)parameters * sizeof *gradient);
    struct sample *samples = make_samples(parameters, &count);
    double began = 0, losses[2] = {0, 0};
    memset(weights, 0, (size_t)parameters * sizeof *weights);
    for (int step = 0; step < steps; step++) {
        if (step == 1) // the first one makes connections
            began = MPI_Wtime();
        memset(gradient, 0, (size_t)parameters * sizeof *gradient);
        double loss = add_gradient(samples, count, weights, gradient);
        MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, gradient, parameters, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < parameters; i++)
            weights[i] -= 0.2 * gradient[i];
        losses[step > 0] = loss;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double step_s = (MPI_Wtime() - began) / (steps - 1);
    uint64_t sum = 0, all[2];
    for (int i = 0; i < parameters; i++) {
        uint64_t word;
        memcpy(&word, &weights[i], sizeof word);
        sum += mixed(word, (uint64_t)i);
    }
    MPI_Allreduce(&sum, &all[0], 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&sum, &all[1], 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    CHECK(all[0] == all[1], "ranks have different weights");
    CHECK(losses[1] < losses[0] / 10, "the error fell from %g to %g only", losses[0], losses[1]);
    free(weights), free(gradient), free(samples);
    return finish("%d weights, %.4f s a step", parameters, step_s);
}
